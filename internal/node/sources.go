package node

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

// NewSource returns a Source that passes on the objects of another Source and guards this proxy's Node. Its Run also
// returns an error if the Node has new addresses or, with Options.NodeCIDR, new pod CIDRs, and if the proxy cannot
// serve the required IP families.
func NewSource(source tracker.Source, options Options) tracker.Source {
	return guardedSource{source, options}
}

type guardedSource struct {
	source  tracker.Source
	options Options
}

// Run implements tracker.Source.
func (s guardedSource) Run(ctx context.Context, sink tracker.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g := &guardedSink{Sink: sink}
	g.guard = guard{options: s.options, logger: klog.FromContext(ctx), publish: g.publish, cancel: cancel}
	err := s.source.Run(ctx, g)
	return cmp.Or(g.guard.stop(), err)
}

// guardedSink passes everything to the next Sink, and the Node through the guard.
type guardedSink struct {
	tracker.Sink
	guard guard
	// object is the source's last Node.
	object corev1.Node
}

// SetNode implements tracker.Sink.
func (s *guardedSink) SetNode(obj *corev1.Node) {
	if obj == nil || obj.Name != s.guard.options.NodeName {
		s.Sink.SetNode(obj)
		return
	}
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	s.object = *obj
	s.guard.set(tracker.ParseNode(obj))
}

// Synced implements tracker.Sink.
func (s *guardedSink) Synced() {
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	s.guard.synced()
	if !s.guard.stopped {
		s.Sink.Synced()
	}
}

// publish passes on the source's Node with the addresses and pod CIDRs of node.
func (s *guardedSink) publish(node model.Node) {
	obj, own := s.object, tracker.ParseNode(&s.object)
	obj.ObjectMeta.Name = node.Name
	if !slices.Equal(node.IPs, own.IPs) {
		obj.Status.Addresses = nil
		for _, ip := range node.IPs {
			obj.Status.Addresses = append(obj.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
		}
		for _, address := range s.object.Status.Addresses {
			if _, err := netip.ParseAddr(address.Address); err != nil {
				obj.Status.Addresses = append(obj.Status.Addresses, address) // the tracker reports it
			}
		}
	}
	if !slices.Equal(node.PodCIDRs, own.PodCIDRs) {
		obj.Spec.PodCIDRs = nil
		for _, cidr := range node.PodCIDRs {
			obj.Spec.PodCIDRs = append(obj.Spec.PodCIDRs, cidr.String())
		}
	}
	s.Sink.SetNode(&obj)
}

// Remote is a Feed that passes on the changes of a node-local client and guards the Node in them.
type Remote struct {
	model.Feed
	guard guard
	// node is the last Node of the guard.
	node   model.Node
	onNode func(model.Node)
	failed chan struct{}
}

// NewRemote returns a Remote that logs to the logger in ctx. onNode is called with each Node that the guard accepts.
func NewRemote(ctx context.Context, feed model.Feed, options Options, onNode func(model.Node)) *Remote {
	r := &Remote{Feed: feed, node: model.Node{Name: options.NodeName}, onNode: onNode, failed: make(chan struct{})}
	r.guard = guard{options: options, logger: klog.FromContext(ctx), publish: r.publish, cancel: func() { close(r.failed) }}
	return r
}

// Run returns nil when ctx ends, and an error for a Node that requires a restart or that the proxy cannot serve.
func (r *Remote) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-r.failed:
	}
	return r.guard.stop()
}

func (r *Remote) publish(node model.Node) {
	r.node = node
	r.onNode(node)
}

// Take implements model.Feed.
func (r *Remote) Take() (*model.Changes, []time.Time) {
	changes, triggers := r.Feed.Take()
	if changes == nil || changes.Node == nil {
		return changes, triggers
	}
	r.guard.mu.Lock()
	defer r.guard.mu.Unlock()
	// A server without the Node sends a Node without facts.
	if said := changes.Node; len(said.IPs) > 0 || len(said.PodCIDRs) > 0 || said.GoingAway {
		r.guard.set(*said)
	}
	if !r.guard.listed {
		r.guard.synced()
	}
	node := r.node
	changes.Node = &node
	return changes, triggers
}
