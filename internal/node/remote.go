package node

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

// Remote lets a Guard look after a Node that a server of the node-local API describes. It is the Guard's Source, which has that
// one Node; it is the Sink, which takes the Node as the Guard wants it; and it is the Feed, in whose changes that Node is.
type Remote struct {
	model.Feed
	// begun is closed when the Guard runs.
	begun chan struct{}
	guard tracker.Sink
	// listed says that the Guard was told that there was all there is.
	listed bool

	mu sync.Mutex
	// node is what the Guard said last.
	node model.Node
}

var (
	_ tracker.Source = (*Remote)(nil)
	_ tracker.Sink   = (*Remote)(nil)
)

// NewRemote returns a Remote over what feed says of the node of that name.
func NewRemote(nodeName string, feed model.Feed) *Remote {
	return &Remote{Feed: feed, begun: make(chan struct{}), node: model.Node{Name: nodeName}}
}

// Run implements tracker.Source.
func (r *Remote) Run(ctx context.Context, guard tracker.Sink) error {
	r.guard = guard
	close(r.begun)
	<-ctx.Done()
	return nil
}

// Take implements model.Feed. It waits until the Guard runs.
func (r *Remote) Take() (*model.Changes, []time.Time) {
	<-r.begun
	changes, triggers := r.Feed.Take()
	if changes == nil || changes.Node == nil {
		return changes, triggers
	}
	if said := changes.Node; len(said.IPs) > 0 || len(said.PodCIDRs) > 0 || said.GoingAway {
		r.guard.SetNode(objectOf(said))
	}
	if !r.listed {
		r.listed = true
		r.guard.Synced()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	node := r.node
	changes.Node = &node
	return changes, triggers
}

// objectOf returns a Node object that says what node says.
func objectOf(node *model.Node) *corev1.Node {
	obj := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	obj.Status.Addresses = internalIPs(node.IPs)
	for _, cidr := range node.PodCIDRs {
		obj.Spec.PodCIDRs = append(obj.Spec.PodCIDRs, cidr.String())
	}
	if node.GoingAway {
		obj.Spec.Taints = []corev1.Taint{{Key: tracker.TaintToBeDeleted, Effect: corev1.TaintEffectNoSchedule}}
	}
	return obj
}

// SetNode implements tracker.Sink.
func (r *Remote) SetNode(obj *corev1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.node = tracker.ParseNode(obj)
}

// The other methods of tracker.Sink do nothing, because a Guard over a Remote passes Nodes only.

// SetService implements tracker.Sink.
func (r *Remote) SetService(*corev1.Service) {}

// DeleteService implements tracker.Sink.
func (r *Remote) DeleteService(string, string) {}

// SetEndpointSlice implements tracker.Sink.
func (r *Remote) SetEndpointSlice(*discoveryv1.EndpointSlice) {}

// DeleteEndpointSlice implements tracker.Sink.
func (r *Remote) DeleteEndpointSlice(string, string) {}

// DeleteNode implements tracker.Sink.
func (r *Remote) DeleteNode(string) {}

// SetServiceCIDR implements tracker.Sink.
func (r *Remote) SetServiceCIDR(*networkingv1.ServiceCIDR) {}

// DeleteServiceCIDR implements tracker.Sink.
func (r *Remote) DeleteServiceCIDR(string) {}

// Waiting implements tracker.Sink.
func (r *Remote) Waiting(string) {}

// Synced implements tracker.Sink.
func (r *Remote) Synced() {}
