package tracker

import (
	"net/netip"
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
	// NodeName is the name of the node that this proxy runs on: endpoints with it are
	// local, and of all Nodes only this one is used.
	NodeName string
	// ServiceProxyName makes the Tracker take exactly the Services whose label
	// LabelServiceProxyName has this value. Empty means those without the label.
	ServiceProxyName string
	// IgnoreExternalIPs leaves out the externalIPs of all Services, as if nobody had set them:
	// whoever may create a Service could else claim any address (CVE-2020-8554).
	// It is kube-proxy's feature gate AllowServiceExternalIPs, turned off.
	IgnoreExternalIPs bool
	// Logger takes warnings about what is skipped. The zero value logs nothing.
	Logger klog.Logger
	// OnSkip, if set, is called for each invalid object or part of an object that is left
	// out, with a Kind and a Reason constant of this package. The same object set again
	// is not counted again. It runs on the goroutine of the Source and must not call
	// the Tracker.
	OnSkip func(kind, reason string)
	// OnUnguarded, if set, is called for a Service that has loadBalancerSourceRanges when everybody
	// may dial its load balancer IPs of some families all the same: no range is of that
	// family, or one has length 0. It is called again when another family becomes
	// open. The rules for OnSkip hold for it too.
	OnUnguarded func(namespace, service string, families []model.Family)
}

// objectName names an object; namespace is empty for objects of the whole cluster.
type objectName struct{ namespace, name string }

// entry is what belongs to one Service name, also when the Service itself is not there.
type entry struct {
	service *service
	// slices is sorted by name.
	slices []*endpointSlice
	// handed is the ports as last handed out, sorted by ID.
	handed []*model.ServicePort
}

// Tracker holds the state of the cluster as far as this node needs it. It is a Sink; its
// methods are safe for concurrent use. What it needs of an object it copies.
type Tracker struct {
	options Options
	started time.Time
	wake    chan struct{}

	// mu guards everything below. It is held while dirty Services are recomputed, so a
	// Source waits for that; a Backend never does.
	mu      sync.Mutex
	synced  bool
	entries map[objectName]*entry
	slices  map[objectName]*endpointSlice
	cidrs   map[string]*serviceCIDR
	node    *node

	// What the next Changes has to look at.
	full         bool
	dirty        map[objectName]struct{}
	allDirty     bool
	nodeDirty    bool
	cidrsDirty   bool
	triggers     map[objectName][]time.Time
	triggerCount int
	handedNode   *node
	handedRanges []netip.Prefix
	scratch      []candidate
	counts       Counts
}

var _ Sink = (*Tracker)(nil)

// New returns an empty Tracker. It hands out nothing before Synced was called.
func New(options Options) *Tracker {
	return &Tracker{
		options:  options,
		started:  time.Now(),
		wake:     make(chan struct{}, 1),
		entries:  map[objectName]*entry{},
		slices:   map[objectName]*endpointSlice{},
		cidrs:    map[string]*serviceCIDR{},
		node:     &node{Node: model.Node{Name: options.NodeName}},
		full:     true,
		dirty:    map[objectName]struct{}{},
		triggers: map[objectName][]time.Time{},
	}
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
	t.counts.Services++
	e := t.entry(name)
	if e.service != nil && e.service.equal(parsed) {
		return
	}
	t.counts.PendingServices++
	t.noteUnguarded(name, e.service, parsed)
	e.service = parsed
	t.markDirty(name)
	t.report(KindService, name, parsed.skips)
}

// DeleteService implements Sink.
func (t *Tracker) DeleteService(namespace, name string) {
	key := objectName{namespace, name}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Services++
	if e := t.entries[key]; e != nil && e.service != nil {
		t.counts.PendingServices++
		t.noteUnguarded(key, e.service, nil)
		e.service = nil
		t.markDirty(key)
	}
}

// SetEndpointSlice implements Sink. The slice may arrive before its Service.
func (t *Tracker) SetEndpointSlice(obj *discoveryv1.EndpointSlice) {
	if obj == nil || t.nameless(KindEndpointSlice, obj.Name) {
		return
	}
	parsed := parseSlice(obj, t.options.NodeName)

	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.EndpointSlices++
	old := t.slices[parsed.name]
	if old != nil && old.equal(parsed) {
		return
	}
	t.counts.PendingEndpointSlices++
	if old != nil && old.service != parsed.service {
		t.unlink(old)
	}
	t.slices[parsed.name] = parsed
	t.link(parsed)
	t.noteTrigger(parsed.service, obj.Annotations)
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
		t.unlink(old)
		// The deletion carries no time, so the latency of this change is not known.
		t.forgetTriggers(old.service)
	}
}

// SetNode implements Sink.
func (t *Tracker) SetNode(obj *corev1.Node) {
	if obj == nil || obj.Name != t.options.NodeName {
		return
	}
	parsed := parseNode(obj)

	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.node
	t.node = parsed
	if !slices.Equal(old.skips, parsed.skips) {
		t.report(KindNode, objectName{name: parsed.Name}, parsed.skips)
	}
	if !old.sameForBackend(parsed) {
		t.nodeDirty = true
		t.signal()
	}
	if old.zone != parsed.zone {
		if old.zone != "" {
			t.options.Logger.Info("Node is in another zone, deciding anew on topology", "node", parsed.Name, "zone", parsed.zone, "oldZone", old.zone)
		}
		t.allDirty = true
		t.signal()
	}
}

// DeleteNode implements Sink. What was known of this node stays: a Node object that
// goes away, for example to be registered anew, does not move the machine.
func (t *Tracker) DeleteNode(name string) {
	if name == t.options.NodeName {
		t.options.Logger.Info("Node of this proxy was deleted, keeping its addresses and zone", "node", name)
	}
}

// SetServiceCIDR implements Sink.
func (t *Tracker) SetServiceCIDR(obj *networkingv1.ServiceCIDR) {
	if obj == nil || t.nameless(KindServiceCIDR, obj.Name) {
		return
	}
	parsed := parseServiceCIDR(obj)

	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.cidrs[obj.Name]; old != nil && old.equal(parsed) {
		return
	}
	t.cidrs[obj.Name] = parsed
	t.cidrsDirty = true
	t.signal()
	t.report(KindServiceCIDR, objectName{name: obj.Name}, parsed.skips)
}

// DeleteServiceCIDR implements Sink.
func (t *Tracker) DeleteServiceCIDR(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cidrs[name] != nil {
		delete(t.cidrs, name)
		t.cidrsDirty = true
		t.signal()
	}
}

// Synced implements Sink. From now on Changes hands out what there is.
func (t *Tracker) Synced() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.synced {
		t.synced = true
		t.signal()
	}
}

// nameless reports whether an object has no name, and then counts it as skipped.
func (t *Tracker) nameless(kind, name string) bool {
	if name != "" {
		return false
	}
	t.report(kind, objectName{}, skipList{{reason: ReasonMalformed, field: "metadata.name", detail: "the object has no name"}})
	return true
}

// entry returns the entry of a Service, a new one if need be.
func (t *Tracker) entry(name objectName) *entry {
	e := t.entries[name]
	if e == nil {
		e = &entry{}
		t.entries[name] = e
	}
	return e
}

// link adds a slice to its Service, or replaces the one with its name.
func (t *Tracker) link(s *endpointSlice) {
	if s.service == (objectName{}) {
		return
	}
	e := t.entry(s.service)
	i, found := slices.BinarySearchFunc(e.slices, s, compareSlices)
	if found {
		e.slices[i] = s
	} else {
		e.slices = slices.Insert(e.slices, i, s)
	}
	t.markDirty(s.service)
}

// unlink takes a slice away from its Service.
func (t *Tracker) unlink(s *endpointSlice) {
	if s.service == (objectName{}) {
		return
	}
	e := t.entry(s.service)
	if i, found := slices.BinarySearchFunc(e.slices, s, compareSlices); found {
		e.slices = slices.Delete(e.slices, i, i+1)
	}
	t.markDirty(s.service)
}

func (t *Tracker) markDirty(name objectName) {
	t.dirty[name] = struct{}{}
	t.signal()
}

// signal wakes whoever waits for Dirty, once there may be something to hand out.
func (t *Tracker) signal() {
	if !t.synced {
		return
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}
