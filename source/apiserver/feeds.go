package apiserver

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

// object is any of the four kinds.
type object interface {
	runtime.Object
	metav1.Object
}

// feed is one resource on its way to the sink.
type feed struct {
	example runtime.Object
	source  *cache.ListWatch
	queue   cache.Queue
	outage  *outage
	// patience bounds the wait of Synced for the resource; 0 means no bound.
	patience time.Duration
	// giveUp, if not nil, ends the wait too.
	giveUp <-chan struct{}
}

// feeds returns the four resources that a proxy reads, the required ones first.
func (s *Source) feeds(ctx context.Context, sink tracker.Sink) []*feed {
	waits, logger := &waits{sink: sink, reasons: map[string]string{}}, klog.FromContext(ctx)
	services := newFeed(s, s.outage("services", waits), logger, &corev1.Service{}, s.collections.Services,
		ownServices(s.config.ServiceProxyName), sink.SetService, sink.DeleteService, tracker.ServiceServes)
	endpointSlices := newFeed(s, s.outage("endpointslices", waits), logger, &discoveryv1.EndpointSlice{}, s.collections.EndpointSlices,
		routableSlices, sink.SetEndpointSlice, sink.DeleteEndpointSlice, tracker.SliceServes)
	nodes := newFeed(s, s.outage("nodes", nil), logger, &corev1.Node{}, s.collections.Nodes,
		s.config.narrowNodes, sink.SetNode, byName(sink.DeleteNode), tracker.NodeServes)
	nodes.patience = s.timing.node
	cidrs := newFeed(s, s.outage("servicecidrs", nil), logger, &networkingv1.ServiceCIDR{}, s.collections.ServiceCIDRs,
		func(*metav1.ListOptions) {}, sink.SetServiceCIDR, byName(sink.DeleteServiceCIDR), servesNothing)
	cidrs.outage.pause = s.timing.refusal
	cidrs.patience, cidrs.giveUp = s.timing.cidrs, cidrs.outage.noticed
	return []*feed{services, endpointSlices, nodes, cidrs}
}

// servesNothing makes each list of ServiceCIDRs plausible: without them the proxy drops no packets to unassigned
// addresses.
func servesNothing(*networkingv1.ServiceCIDR) string { return "" }

// outage returns the outage of a resource. Synced waits for it unless waits is nil.
func (s *Source) outage(resource string, waits *waits) *outage {
	o := newOutage(resource)
	o.silence = s.timing.silence
	if s.config.OnFailing != nil {
		o.onFailing = func(failing bool) { s.config.OnFailing(resource, failing) }
	}
	if waits != nil {
		o.waiting = func(reason string) { waits.set(resource, reason) }
		o.waiting("not listed yet")
	}
	return o
}

// waits passes to the sink which resources Synced still waits for.
type waits struct {
	sink tracker.Sink
	mu   sync.Mutex
	// reasons says why each of these resources is not listed.
	reasons map[string]string
}

// set records why a resource is not listed; an empty reason says that the resource is listed.
func (w *waits) set(resource, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reasons[resource] == reason {
		return
	}
	w.reasons[resource] = reason
	var all []string
	for _, resource := range slices.Sorted(maps.Keys(w.reasons)) {
		if reason := w.reasons[resource]; reason != "" {
			all = append(all, resource+": "+reason)
		}
	}
	if len(all) == 0 {
		all = []string{"nodes and servicecidrs, for some seconds at most"}
	}
	w.sink.Waiting(strings.Join(all, "; "))
}

func newFeed[T object](
	s *Source, outage *outage, logger klog.Logger, example T, objects Collection, narrow narrowing,
	set func(T), remove func(namespace, name string), serves func(T) string,
) *feed {
	queue := newDirectQueue(s.config.Guard, model.LossesOptions[cache.ObjectName]{
		Resource: outage.resource, Logger: logger, Awaited: outage.waiting != nil, MayBeEmpty: s.config.ServiceProxyName != "",
	}, set, remove, serves)
	queue.details = s.config.Details
	if outage.waiting != nil {
		queue.waiting = outage.waiting
	}
	return &feed{example: example, source: listWatch(objects, narrow, outage), queue: queue, outage: outage}
}

// start lists and watches until ctx ends. There is no resync: a sink keeps its objects.
func (f *feed) start(ctx context.Context, running *sync.WaitGroup) {
	controller := cache.New(&cache.Config{
		Queue:         f.queue,
		ListerWatcher: f.source,
		ObjectType:    f.example,
		WatchErrorHandlerWithContext: func(ctx context.Context, _ *cache.Reflector, err error) {
			f.outage.failed(ctx, err)
		},
	})
	running.Go(func() { controller.RunWithContext(ctx) })
}

// wait waits for the resource, within the bound of Synced.
func (f *feed) wait(ctx context.Context) {
	var timeout <-chan time.Time
	if f.patience > 0 {
		timeout = time.After(f.patience)
	}
	select {
	case <-f.queue.HasSyncedChecker().Done():
	case <-f.giveUp:
	case <-timeout:
		klog.FromContext(ctx).Info("Going on without a resource that is not listed yet", "resource", f.outage.resource, "waited", f.patience.String())
	case <-ctx.Done():
	}
}
