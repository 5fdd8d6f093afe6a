package tracker

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/model"
)

// View publishes the state of one node: each Take returns the changes since the previous Take. Its methods are safe for
// concurrent use.
type View struct {
	tracker *Tracker
	name    string
	wake    chan struct{}

	// The tracker's lock guards what follows.

	// full makes the next changes Full.
	full bool
	// seen is the revision up to which all changes were published.
	seen uint64
	// node is the Node at the last Take; nil before the first.
	node *node
	// published holds the ports of each entry at the last Take, by the entry's index. removed holds the ports of
	// entries that were removed since.
	published []*published
	removed   map[objectName]*published
	// ranges holds the published ServiceCIDRs.
	ranges []netip.Prefix
	// resumed is the revision that the view began with; 0 for none, and after the first Take.
	resumed uint64
	// keys are the labels and annotations whose changes count.
	keys model.ServiceKeys
}

func (t *Tracker) newView(node string) *View {
	v := &View{tracker: t, name: node, wake: make(chan struct{}, 1), full: true}
	t.views[v] = struct{}{}
	return v
}

// View returns a new view of a node. The caller must call Close. View panics for a node that the Tracker does not serve
// (Serves).
//
// With resume 0 the first changes are Full. Otherwise resume is a revision that TakeRevision of another view of the
// same node returned, from this Tracker. The first changes are then increments to the state at this revision, which may
// repeat unchanged ports. They are Full if the Tracker has forgotten deletions since ([Options.History]).
func (t *Tracker) View(node string, resume uint64) *View {
	if !t.Serves(node) {
		panic(fmt.Sprintf("tracker: View of node %q, and this Tracker is for node %q alone: set Options.EveryNode", node, t.options.NodeName))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.newView(node)
	if t.synced {
		v.seen = t.changes.revision // the first changes are Full, and tell nothing about latency
	}
	if resume > 0 && t.options.History > 0 && t.synced && resume >= t.changes.horizon && resume <= t.changes.revision {
		v.resume(resume)
	}
	v.signal()
	return v
}

// Select makes the view report changes of the labels and annotations with these keys, with [Options.Details]. It must
// be called before the first Take. A view that resumes must select the same keys as the earlier view.
func (v *View) Select(keys model.ServiceKeys) {
	v.tracker.mu.Lock()
	defer v.tracker.mu.Unlock()
	v.keys = keys
}

// NodeKnown reports whether the Tracker has had a Node object of the view's node since the view began.
func (v *View) NodeKnown() bool {
	v.tracker.mu.Lock()
	defer v.tracker.mu.Unlock()
	return v.tracker.known[v.name] != nil
}

// Serves reports whether View may be called for a node.
func (t *Tracker) Serves(node string) bool { return t.options.EveryNode || node == t.options.NodeName }

// Close ends the view: no other method may be called afterwards.
func (v *View) Close() {
	t := v.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.views, v)
	if n := t.known[v.name]; n != nil && n.deleted && len(t.viewsOf(v.name)) == 0 {
		t.forgetNode(v.name)
	}
}

// Dirty returns a channel that receives when Take may have changes. Many events make one receive. The channel is never
// closed, and may have one reader only.
func (v *View) Dirty() <-chan struct{} { return v.wake }

// Resync makes the next changes Full.
func (v *View) Resync() {
	v.tracker.mu.Lock()
	defer v.tracker.mu.Unlock()
	v.full = true
	v.signal()
}

// Take returns the changes since the last call, nil for none, and the times of the events behind them, oldest first,
// from EndpointSlices (annotation endpoints.kubernetes.io/last-change-trigger-time). It omits times from before the
// start of the Tracker, or of a View that starts with Full changes.
func (v *View) Take() (*model.Changes, []time.Time) {
	changes, triggers, _, _ := v.TakeRevision()
	return changes, triggers
}

// TakeRevision is Take, and also returns the revision after the changes, with which a later View can resume. Before
// Synced, synced is false and all else is zero: Tracker.WaitingFor says why. A cluster without any object has revision
// 0.
func (v *View) TakeRevision() (changes *model.Changes, triggers []time.Time, revision uint64, synced bool) {
	t := v.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.synced {
		return nil, nil, 0, false
	}
	t.counts.PendingServices, t.counts.PendingEndpointSlices = 0, 0
	changes = &model.Changes{Full: v.startsFull(), Ports: map[model.PortID]*model.ServicePort{}}
	for _, tr := range t.triggersSince(v.seen) {
		triggers = append(triggers, tr.when)
	}
	slices.SortFunc(triggers, time.Time.Compare)
	if v.startsOver() {
		v.seen = 0
	}
	v.takeNode(changes)
	v.takePorts(changes)
	v.takeServiceCIDRs(changes)
	v.full, v.seen, v.resumed = false, t.changes.revision, 0
	if !t.options.EveryNode && len(t.views) == 1 { // no other view takes them
		clear(t.triggers)
		t.triggers = t.triggers[:0]
	}
	if changes.Empty() {
		changes = nil
	}
	return changes, triggers, v.seen, true
}

// Behind returns about how many Services the next Take has to compute, deleted Services included. It is 0 before
// Synced.
func (v *View) Behind() int {
	t := v.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.synced {
		return 0
	}
	all := len(t.entries) + len(v.removed)
	if v.resumed > 0 {
		all += len(t.changes.goneSince(v.resumed))
	}
	if v.startsFull() || v.startsOver() {
		return all
	}
	return min(int(t.changes.revision-v.seen), all)
}

// startsFull reports whether the next changes are Full, perhaps because a resumed view missed deletions that the
// Tracker has forgotten.
func (v *View) startsFull() bool {
	return v.full || v.resumed > 0 && v.resumed < v.tracker.changes.horizon
}

// startsOver reports whether every Service must be recomputed, because the node is in another zone.
func (v *View) startsOver() bool { return v.node == nil || v.node.zone != v.tracker.node(v.name).zone }

// signal wakes the reader, once Synced was called.
func (v *View) signal() {
	if !v.tracker.synced {
		return
	}
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// resume makes the view continue after a revision, as if it had published everything up to that. If the Node has
// changed since, it publishes everything again.
func (v *View) resume(revision uint64) {
	t := v.tracker
	v.full, v.seen, v.resumed = false, revision, revision
	if t.cidrsChanged <= revision {
		v.ranges = t.serviceRanges()
	}
	n := t.node(v.name)
	if n.changed > revision {
		return
	}
	v.node = n
	for e := t.changes.ends.next; e != &t.changes.ends && e.changed <= revision; e = e.next {
		*v.slot(e) = t.publish(e, v.where(), nil)
	}
}

// place is a node and its zone; an unknown one is empty.
type place struct{ node, zone string }

// where returns the view's node and its zone.
func (v *View) where() place { return place{v.name, v.node.zone} }

// slot returns the view's place for the published ports of an entry.
func (v *View) slot(e *entry) **published {
	if missing := int(e.index) + 1 - len(v.published); missing > 0 {
		if v.published == nil {
			missing = int(v.tracker.changes.size)
		}
		v.published = append(v.published, make([]*published, missing)...)
	}
	return &v.published[e.index]
}

// remove keeps the published ports of a removed entry, whose index another entry may get.
func (v *View) remove(e *entry) {
	if int(e.index) >= len(v.published) || v.published[e.index] == nil {
		return
	}
	if v.removed == nil {
		v.removed = map[objectName]*published{}
	}
	v.removed[serviceOf(v.published[e.index].ports[0].ID)], v.published[e.index] = v.published[e.index], nil
}

// takePorts adds the changed ports to changes.
func (v *View) takePorts(changes *model.Changes) {
	t := v.tracker
	for e := t.changes.ends.prev; e.changed > v.seen; e = e.prev {
		v.recompute(e, changes.Ports)
	}
	// Do not keep the endpoints of deleted slices alive.
	clear(t.scratch[:cap(t.scratch)])
	removed := v.removed
	v.removed = nil
	if changes.Full {
		changes.Ports = make(map[model.PortID]*model.ServicePort, len(v.published))
		for _, p := range v.published {
			for _, port := range p.list() {
				changes.Ports[port.ID] = port
			}
		}
		return
	}
	for _, old := range removed {
		for _, port := range old.ports {
			changes.Ports[port.ID] = nil
		}
	}
	if v.resumed > 0 {
		for _, gone := range t.changes.goneSince(v.resumed) {
			if !v.publishes(gone.id) {
				changes.Ports[gone.id] = nil
			}
		}
	}
}

// publishes reports whether the view has published a port that exists.
func (v *View) publishes(id model.PortID) bool {
	e := v.tracker.entries[serviceOf(id)]
	return e != nil && findPort((*v.slot(e)).list(), id) != nil
}

// recompute updates the ports of one Service and adds the differences to changed. An equal port keeps its old
// ServicePort.
func (v *View) recompute(e *entry, changed map[model.PortID]*model.ServicePort) {
	kept := v.slot(e)
	old := *kept
	if len(v.removed) > 0 && e.service != nil && len(e.service.ports) > 0 {
		name := serviceOf(e.service.ports[0].ID)
		if was := v.removed[name]; was != nil { // it is back
			old = was
			delete(v.removed, name)
		}
	}
	now := v.tracker.publish(e, v.where(), old)
	*kept = now
	if old == now {
		return
	}
	for _, port := range old.list() {
		if findPort(now.list(), port.ID) == nil {
			changed[port.ID] = nil
		}
	}
	for _, port := range now.list() {
		if !findPort(old.list(), port.ID).EqualFor(port, v.keys) {
			changed[port.ID] = port
		}
	}
}

// publish returns the ports of a Service with their endpoints for a node, nil for none. A port that equals its value in
// old, which may be nil, is the same object. All nodes of a zone that no endpoint names share the ports.
func (t *Tracker) publish(e *entry, from place, old *published) *published {
	if own := t.own; own != nil && own.seen >= e.changed && int(e.index) < len(own.published) && from == own.where() {
		return own.published[e.index]
	}
	if !t.options.EveryNode || e.names(from.node) {
		return t.join(e, from, old)
	}
	if e.shared == nil {
		e.shared = &shared{}
	}
	s := e.shared
	if s.revision != e.changed {
		s.revision, s.before, s.byZone = e.changed, s.byZone, map[string]*published{}
	}
	zone := ""
	if e.zoned() {
		zone = from.zone
	}
	now, known := s.byZone[zone]
	if !known {
		if before := s.before[zone]; before != nil {
			old = before
		}
		now = t.join(e, place{zone: zone}, old)
		s.byZone[zone] = now
		delete(s.before, zone)
	}
	return now
}

// join returns the ports of a Service for a node, nil for none.
func (t *Tracker) join(e *entry, from place, old *published) *published {
	if e.service == nil || len(e.service.ports) == 0 {
		return nil
	}
	same := old != nil && len(old.ports) == len(e.service.ports)
	ports := make([]*model.ServicePort, 0, len(e.service.ports))
	for _, port := range e.service.ports {
		if e.service.published {
			again := *port
			port = &again
		}
		t.scratch = fill(port, e.slices, from, t.scratch)
		if before := findPort(old.list(), port.ID); before.Equal(port) {
			ports = append(ports, before)
			continue
		}
		same = false
		ports = append(ports, port)
	}
	e.service.ports, e.service.published = ports, true
	if same {
		return old
	}
	return &published{ports}
}

func (v *View) takeNode(changes *model.Changes) {
	now := v.tracker.node(v.name)
	if changes.Full || v.node == nil || !v.node.Equal(&now.Node) {
		node := now.Node
		changes.Node = &node
	}
	v.node = now
}

func (v *View) takeServiceCIDRs(changes *model.Changes) {
	t := v.tracker
	if t.cidrsChanged <= v.seen && !changes.Full {
		return
	}
	ranges := t.serviceRanges()
	// A resumed view does not have the values that its client got.
	unknown := v.resumed > 0 && t.cidrsChanged > v.resumed
	if changes.Full || unknown || !slices.Equal(ranges, v.ranges) {
		changes.ServiceCIDRs, changes.ServiceCIDRsChanged = ranges, true
		v.ranges = ranges
	}
}

// serviceRanges returns the ranges of all ServiceCIDRs, sorted.
func (t *Tracker) serviceRanges() (ranges []netip.Prefix) {
	for _, cidr := range t.cidrs {
		ranges = append(ranges, cidr.ranges...)
	}
	return sortedSet(ranges, netip.Prefix.Compare)
}
