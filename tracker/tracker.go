package tracker

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/model"
)

// Options configures a Tracker. The zero value is a default proxy on a nameless node, to
// which no endpoint is local.
type Options struct {
	// NodeName is the name of the node that this proxy runs on. Endpoints with this node name are local. Other Nodes
	// are ignored, except with EveryNode.
	NodeName string
	// EveryNode makes the Tracker serve all nodes: View may be called for any name, and all Nodes are used. With an
	// empty NodeName, Changes, Take, Dirty and Resync then panic.
	EveryNode bool
	// History bounds the deleted Service ports that the Tracker remembers for views that resume. With 0, a View that
	// resumes starts with a Full change.
	History int
	// ServiceProxyName makes the Tracker take exactly the Services whose label LabelServiceProxyName has this value.
	// Empty selects Services without the label.
	ServiceProxyName string
	// Details makes the Tracker set AppProtocol, ServiceType, ServiceLabels and ServiceAnnotations of a ServicePort,
	// and Info of an Endpoint. It omits the annotation kubectl.kubernetes.io/last-applied-configuration, values of more
	// than 4,096 bytes, and labels or annotations of one Service beyond 32 KiB, in the order of their keys.
	Details bool
	// ServiceKeys are the labels and annotations whose changes Changes and Take report, with Details. ServicePorts have
	// all kept labels and annotations, but only these are up to date. View.Select is the same for a View.
	ServiceKeys model.ServiceKeys
	// IgnoreExternalIPs omits the externalIPs of all Services. Otherwise each author of a Service can claim any address
	// (CVE-2020-8554).
	IgnoreExternalIPs bool
	// DirectReturn enables the annotation AnnotationDirectReturn.
	DirectReturn bool
	// Logger takes warnings about skipped objects. The zero value logs nothing.
	Logger klog.Logger
	// OnSkip, if set, is called for each invalid object or part of an object that is left
	// out, with a Kind and a Reason constant of this package, and not again for the same object. It
	// runs on the goroutine of the Source and must not call the Tracker.
	OnSkip func(kind, reason string)
	// OnUnguarded, if set, is called for a Service with loadBalancerSourceRanges that leave a family of its load
	// balancer IPs open to all sources: no range is of the family, or one has length 0. It is called again when another
	// family becomes open. It runs like OnSkip.
	OnUnguarded func(namespace, service string, families []model.Family)
}

// objectName names an object; namespace is empty for objects of the whole cluster.
type objectName struct{ namespace, name string }

func serviceOf(id model.PortID) objectName { return objectName{id.Namespace, id.Service} }

// Tracker holds the part of the cluster's state that its views need. It is a Sink. Its methods are safe for concurrent
// use. It copies the parts of an object that it needs.
type Tracker struct {
	options Options
	started time.Time
	// nodes are the node names to keep of slices: all if nil, none without a node name.
	nodes []string
	// own is the view of the node in options; nil if there is none.
	own *View
	// ready is closed by Synced.
	ready chan struct{}

	// mu guards everything below, and the views. It is held while changed Services are recomputed, so a Source waits
	// for the computation; a Backend never does.
	mu     sync.Mutex
	synced bool
	// waiting names the resources for which the Source still waits.
	waiting string
	entries map[objectName]*entry
	slices  map[objectName]*endpointSlice
	cidrs   map[string]*serviceCIDR
	// known holds the Nodes by name. Deleted Nodes with a view stay.
	known map[string]*node
	// forgotten is the revision at which a Node last became unknown. It counts as a change of all unknown nodes.
	forgotten uint64
	views     map[*View]struct{}

	changes      changeLog
	cidrsChanged uint64
	triggers     []trigger
	scratch      []candidate
	counts       Counts
}

// Counts counts the events of a Tracker, for metrics.
type Counts struct {
	// Services and EndpointSlices count calls of Set and Delete for objects of the kind, also without effect.
	Services, EndpointSlices uint64
	// PendingServices and PendingEndpointSlices count the effective calls since the last Take of any view.
	PendingServices, PendingEndpointSlices int
	// UnguardedServices counts the Services of Options.OnUnguarded.
	UnguardedServices int
}

// Counts returns the current counts.
func (t *Tracker) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts
}

// New returns an empty Tracker. It publishes nothing before Synced.
func New(options Options) *Tracker {
	t := &Tracker{
		options: options,
		started: time.Now(),
		ready:   make(chan struct{}),
		waiting: "Services and EndpointSlices",
		entries: map[objectName]*entry{},
		slices:  map[objectName]*endpointSlice{},
		cidrs:   map[string]*serviceCIDR{},
		known:   map[string]*node{},
		views:   map[*View]struct{}{},
	}
	t.changes.ends.prev, t.changes.ends.next = &t.changes.ends, &t.changes.ends
	if !options.EveryNode {
		t.nodes = slices.DeleteFunc([]string{options.NodeName}, func(name string) bool { return name == "" })
	}
	if options.NodeName != "" || !options.EveryNode {
		t.own = t.newView(options.NodeName)
		t.own.keys = options.ServiceKeys
	}
	return t
}

// SetService implements Sink.
func (t *Tracker) SetService(obj *corev1.Service) {
	if obj == nil || t.nameless(KindService, obj.Name) {
		return
	}
	name := objectName{obj.Namespace, obj.Name}
	parsed := parseService(obj, &t.options)

	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(name)
	t.counts.Services++
	if e.service == nil || !e.service.equal(parsed) {
		t.putService(name, e, parsed)
		t.report(KindService, name, parsed.skips)
	}
}

// DeleteService implements Sink.
func (t *Tracker) DeleteService(namespace, name string) {
	key := objectName{namespace, name}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Services++
	if e := t.entries[key]; e != nil && e.service != nil {
		t.putService(key, e, nil)
	}
}

// putService replaces the Service of an entry; nil means that it is gone.
func (t *Tracker) putService(name objectName, e *entry, now *service) {
	t.counts.PendingServices++
	t.noteUnguarded(name, e.service, now)
	t.noteGone(e, now)
	e.service = now
	t.markDirty(name, e)
}

// SetEndpointSlice implements Sink. The slice may arrive before its Service.
func (t *Tracker) SetEndpointSlice(obj *discoveryv1.EndpointSlice) {
	if obj == nil || t.nameless(KindEndpointSlice, obj.Name) {
		return
	}
	parsed := parseSlice(obj, t.nodes, t.options.Details)

	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.EndpointSlices++
	old := t.slices[parsed.name]
	if old != nil && old.equal(parsed) {
		return
	}
	t.counts.PendingEndpointSlices++
	if old != nil && old.serviceName != parsed.serviceName {
		t.link(old, nil)
	}
	t.slices[parsed.name] = parsed
	t.noteTrigger(t.link(parsed, parsed), obj.Annotations)
	t.report(KindEndpointSlice, parsed.name, parsed.skips)
}

// DeleteEndpointSlice implements Sink.
func (t *Tracker) DeleteEndpointSlice(namespace, name string) {
	key := objectName{namespace, name}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.EndpointSlices++
	if old := t.slices[key]; old != nil {
		t.counts.PendingEndpointSlices++
		delete(t.slices, key)
		// The deletion carries no time, so the latency of this change is not known.
		e := t.link(old, nil)
		t.triggers = slices.DeleteFunc(t.triggers, func(tr trigger) bool { return tr.entry == e })
	}
}

// SetNode implements Sink.
func (t *Tracker) SetNode(obj *corev1.Node) {
	if obj == nil || obj.Name == "" || !t.options.EveryNode && obj.Name != t.options.NodeName {
		return
	}
	parsed := parseNode(obj)

	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.node(parsed.Name)
	t.known[parsed.Name] = parsed
	if !slices.Equal(old.skips, parsed.skips) {
		t.report(KindNode, objectName{name: parsed.Name}, parsed.skips)
	}
	if parsed.changed = old.changed; old.zone == parsed.zone && old.Equal(&parsed.Node) {
		return
	}
	if old.zone != "" && old.zone != parsed.zone && !t.options.EveryNode {
		t.options.Logger.Info("Node is in another zone, deciding anew on topology",
			"node", parsed.Name, "zone", parsed.zone, "oldZone", old.zone)
	}
	parsed.changed = t.changes.next()
	for _, v := range t.viewsOf(parsed.Name) {
		v.signal()
	}
}

// DeleteNode implements Sink. The data of a node with a View stays, marked as going away: the machine still runs, and
// may register its Node anew.
func (t *Tracker) DeleteNode(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, watched := t.known[name], len(t.viewsOf(name)) > 0
	if watched && !t.options.EveryNode {
		t.options.Logger.Info("Node of this proxy was deleted, keeping its addresses and zone", "node", name)
	}
	switch {
	case n == nil || n.deleted:
	case watched:
		gone := *n // views have n
		gone.deleted, gone.GoingAway, gone.changed = true, true, t.changes.next()
		t.known[name] = &gone
		for _, v := range t.viewsOf(name) {
			v.signal()
		}
	default:
		t.forgetNode(name)
	}
}

// forgetNode makes a known node unknown.
func (t *Tracker) forgetNode(name string) {
	delete(t.known, name)
	t.forgotten = t.changes.next()
}

// node returns a node, with nothing but its name if its Node is not known.
func (t *Tracker) node(name string) *node {
	if n := t.known[name]; n != nil {
		return n
	}
	return &node{Node: model.Node{Name: name}, changed: t.forgotten}
}

// SetServiceCIDR implements Sink.
func (t *Tracker) SetServiceCIDR(obj *networkingv1.ServiceCIDR) {
	if obj == nil || t.nameless(KindServiceCIDR, obj.Name) {
		return
	}
	parsed := &serviceCIDR{}
	parsed.ranges = parsePrefixes(obj.Spec.CIDRs, "spec.cidrs", &parsed.skips)

	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.cidrs[obj.Name]; old != nil &&
		slices.Equal(old.ranges, parsed.ranges) && slices.Equal(old.skips, parsed.skips) {
		return
	}
	t.cidrs[obj.Name] = parsed
	t.cidrsChanged = t.changes.next()
	t.signal()
	t.report(KindServiceCIDR, objectName{name: obj.Name}, parsed.skips)
}

// DeleteServiceCIDR implements Sink.
func (t *Tracker) DeleteServiceCIDR(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cidrs[name] != nil {
		delete(t.cidrs, name)
		t.cidrsChanged = t.changes.next()
		t.signal()
	}
}

// Waiting implements Sink.
func (t *Tracker) Waiting(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.synced {
		t.waiting = reason
	}
}

// WaitingFor returns the last argument of Waiting. It is empty after Synced, and never before.
func (t *Tracker) WaitingFor() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting
}

// Synced implements Sink. From now on the Tracker publishes its state.
func (t *Tracker) Synced() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.synced {
		t.synced, t.waiting = true, ""
		close(t.ready)
		t.signal()
	}
}

// Ready returns a channel that is closed when Synced was called.
func (t *Tracker) Ready() <-chan struct{} { return t.ready }

// ServiceProxyName returns Options.ServiceProxyName.
func (t *Tracker) ServiceProxyName() string { return t.options.ServiceProxyName }

// nameless reports whether an object has no name, and then counts it as skipped.
func (t *Tracker) nameless(kind, name string) bool {
	if name == "" {
		t.report(kind, objectName{}, skipList{{reason: ReasonMalformed, field: "metadata.name", detail: "the object has no name"}})
	}
	return name == ""
}

// entry returns the entry of a Service, a new one if need be.
func (t *Tracker) entry(name objectName) *entry {
	e := t.entries[name]
	if e == nil {
		e = &entry{}
		t.changes.add(e)
		t.entries[name] = e
	}
	return e
}

// link replaces the slice of the same name in the entry of the Service that s belongs to; nil deletes the slice. It
// returns the entry, nil for none.
func (t *Tracker) link(s, now *endpointSlice) *entry {
	if s.serviceName == "" {
		return nil
	}
	e := t.entry(s.service())
	i, found := slices.BinarySearchFunc(e.slices, s, compareSlices)
	switch {
	case now == nil:
		e.slices = slices.Delete(e.slices, i, i+1)
	case found:
		e.slices[i] = now
	default:
		e.slices = slices.Insert(e.slices, i, now)
	}
	t.markDirty(s.service(), e)
	return e
}

// markDirty records that the ports of a Service may have changed.
func (t *Tracker) markDirty(name objectName, e *entry) {
	t.changes.touch(e)
	if e.empty() {
		for v := range t.views {
			v.remove(e)
		}
		t.changes.unlink(e)
		t.changes.free = append(t.changes.free, e.index)
		delete(t.entries, name)
	}
	t.signal()
}

// Dirty returns a channel that receives when Changes may have changes (View.Dirty).
//
// Dirty, Changes, Take and Resync are the methods of the view of Options.NodeName. They panic on a Tracker without
// NodeName.
func (t *Tracker) Dirty() <-chan struct{} { return t.ownView().wake }

// Changes returns the difference since the last call, or nil without any and before Synced. The first result is Full.
// It omits changes that were undone between two calls. The caller owns the Changes; the ServicePorts in it are shared
// and must not be modified.
func (t *Tracker) Changes() *model.Changes {
	changes, _ := t.Take()
	return changes
}

// Resync makes the next Changes Full, for a backend that lost its state.
func (t *Tracker) Resync() { t.ownView().Resync() }

// Take returns Changes, and the times of the events that led to them (View.Take).
func (t *Tracker) Take() (*model.Changes, []time.Time) { return t.ownView().Take() }

// ownView returns the view of the node in options. It panics if there is none.
func (t *Tracker) ownView() *View {
	if t.own == nil {
		panic("tracker: this Tracker has no node of its own: set Options.NodeName, or take the changes of a node from Tracker.View")
	}
	return t.own
}

// signal wakes the readers of all views.
func (t *Tracker) signal() {
	for v := range t.views {
		v.signal()
	}
}

// viewsOf returns the views of a node.
func (t *Tracker) viewsOf(node string) (views []*View) {
	for v := range t.views {
		if v.name == node {
			views = append(views, v)
		}
	}
	return views
}
