package apiserver

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/tracker"
)

// feed is one resource on its way to the sink.
type feed struct {
	resource string
	example  runtime.Object
	source   *cache.ListWatch
	handler  cache.ResourceEventHandler
	outage   *outage
	refusal  *refusal // nil: the proxy cannot do without this resource
}

// feeds returns the four resources that a proxy reads.
func (s *Source) feeds(sink tracker.Sink) []*feed {
	all := metav1.NamespaceAll
	feeds := []*feed{
		newFeed("services", &corev1.Service{}, s.client.CoreV1().Services(all),
			ownServices(s.config.ServiceProxyName), handover(sink.SetService, sink.DeleteService)),
		newFeed("endpointslices", &discoveryv1.EndpointSlice{}, s.client.DiscoveryV1().EndpointSlices(all),
			routableSlices, handover(sink.SetEndpointSlice, sink.DeleteEndpointSlice)),
		newFeed("nodes", &corev1.Node{}, s.client.CoreV1().Nodes(),
			oneNode(s.config.NodeName), handover(sink.SetNode, byName(sink.DeleteNode))),
	}
	cidrs := newFeed("servicecidrs", &networkingv1.ServiceCIDR{}, s.client.NetworkingV1().ServiceCIDRs(),
		everything, handover(sink.SetServiceCIDR, byName(sink.DeleteServiceCIDR)))
	cidrs.refusal = newRefusal(cidrs.resource, s.refusalPause)
	cidrs.source = cidrs.refusal.guard(cidrs.source)
	return append(feeds, cidrs)
}

func newFeed[L runtime.Object](
	resource string, example runtime.Object, objects collection[L], narrow narrowing, handler cache.ResourceEventHandler,
) *feed {
	outage := &outage{resource: resource}
	return &feed{
		resource: resource,
		example:  example,
		source:   listWatch(objects, narrow, outage),
		handler:  handler,
		outage:   outage,
	}
}

// start runs an informer until ctx ends, and returns what is done when everything that existed
// has been handed over. There is no resync: a sink keeps what it was given.
func (f *feed) start(ctx context.Context, running *sync.WaitGroup) (cache.DoneChecker, error) {
	informer := cache.NewSharedIndexInformerWithOptions(f.source, f.example, cache.SharedIndexInformerOptions{})
	if err := informer.SetTransform(trim); err != nil {
		return nil, err
	}
	if err := informer.SetWatchErrorHandlerWithContext(f.watchError); err != nil {
		return nil, err
	}
	logger := klog.FromContext(ctx)
	handle, err := informer.AddEventHandlerWithOptions(f.handler, cache.HandlerOptions{Logger: &logger})
	if err != nil {
		return nil, err
	}
	running.Go(func() { informer.RunWithContext(ctx) })
	if f.refusal == nil {
		return handle.HasSyncedChecker(), nil
	}
	return firstOf(ctx, running, handle.HasSyncedChecker(), f.refusal), nil
}

func (f *feed) watchError(ctx context.Context, _ *cache.Reflector, err error) {
	if f.refusal != nil && isRefusal(err) {
		return // logged where it was noticed
	}
	f.outage.failed(ctx, err)
}

// either is done when one of two things is.
type either struct {
	name string
	done chan struct{}
}

// Name and Done implement cache.DoneChecker.
func (e *either) Name() string          { return e.name }
func (e *either) Done() <-chan struct{} { return e.done }

func firstOf(ctx context.Context, running *sync.WaitGroup, a, b cache.DoneChecker) cache.DoneChecker {
	e := &either{a.Name() + " or " + b.Name(), make(chan struct{})}
	running.Go(func() {
		select {
		case <-a.Done():
		case <-b.Done():
		case <-ctx.Done():
			return
		}
		close(e.done)
	})
	return e
}
