package tracker

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/model"
)

// View publishes the state of one node: each Take returns the changes since the previous one. Its
// methods are safe for concurrent use.
type View struct {
	tracker *Tracker
	name    string
	wake    chan struct{}

	// The tracker's lock guards what follows.

	// full makes the next changes Full.
	full bool
	// seen is the revision up to which all changes were published.
	seen uint64
	// timed is the revision up to which the times of events were taken.
	timed uint64
	// zone is the node's at the last Take.
	zone string
	// published holds the ports of each entry at the last Take, by the entry's index.
	published []*published
	// lost holds the published ports if entries of them were deleted since, so that published is no longer complete.
	lost map[model.PortID]*model.ServicePort
	node *node
	// ranges holds the published ServiceCIDRs.
	ranges []netip.Prefix
	// resumed is the revision that the view began with; 0 for none.
	resumed uint64
	// keys are the labels and annotations whose changes count.
	keys model.ServiceKeys
}

func (t *Tracker) newView(node string) *View {
	v := &View{tracker: t, name: node, wake: make(chan struct{}, 1), full: true}
	t.views[v] = struct{}{}
	return v
}

// View returns a new view of a node. The caller must call Close. Without [Options.EveryNode] it must
// be the node in Options, as Serves tells; View panics for another one, because the Tracker does not
// keep its endpoints apart.
//
// With resume 0 the first changes are Full. Otherwise resume is a revision that TakeRevision of
// another view of the same node returned, from this Tracker. The first changes are then increments
// to the state at that revision, and may name ports that did not change. If the Tracker does not
// remember all deletions since that revision ([Options.History]), the first changes are Full
// nevertheless.
func (t *Tracker) View(node string, resume uint64) *View {
	if !t.Serves(node) {
		panic(fmt.Sprintf("tracker: View of node %q, and this Tracker is for node %q alone: set Options.EveryNode", node, t.options.NodeName))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.newView(node)
	if t.synced {
		v.timed = t.changes.revision // the first changes are Full, and tell nothing about latency
	}
	if resume > 0 && t.options.History > 0 && t.synced && resume >= t.changes.horizon && resume <= t.changes.revision {
		v.resume(resume)
	}
	v.signal()
	return v
}

// Select makes the view report changes of the labels and annotations with these keys, with [Options.Details]. It must be
// called before the first Take. A view that resumes must select what the earlier one did.
func (v *View) Select(keys model.ServiceKeys) {
	v.tracker.mu.Lock()
	defer v.tracker.mu.Unlock()
	v.keys = keys
}

// NodeKnown reports whether the Tracker has, or had since this View exists, a Node object for the view.
func (v *View) NodeKnown() bool {
	v.tracker.mu.Lock()
	defer v.tracker.mu.Unlock()
	return v.tracker.known[v.name] != nil
}

// Serves reports whether View may be called for a node.
func (t *Tracker) Serves(node string) bool {
	return t.options.EveryNode || node == t.options.NodeName
}

// Close ends the view.
func (v *View) Close() {
	t := v.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.views, v)
	if n := t.known[v.name]; n != nil && n.deleted && len(t.viewsOf(v.name)) == 0 {
		t.forgetNode(v.name)
	}
}

// Dirty returns a channel that receives after events for which Take may have news. Many events make
// one receive. The channel is never closed, and may have one reader only.
func (v *View) Dirty() <-chan struct{} { return v.wake }

// Resync makes the next changes Full.
func (v *View) Resync() {
	v.tracker.mu.Lock()
	defer v.tracker.mu.Unlock()
	v.full = true
	v.signal()
}

// Take returns the changes since the last call, nil for none, and the times of the events that led to them, oldest
// first, as far as EndpointSlices tell (annotation endpoints.kubernetes.io/last-change-trigger-time). Times from before the
// start of the Tracker, or of a View that starts with Full changes, are left out.
func (v *View) Take() (*model.Changes, []time.Time) {
	changes, triggers, _, _ := v.TakeRevision()
	return changes, triggers
}

// TakeRevision is Take, and also returns the revision of the state after these changes, with which a
// later View can resume. Before Synced was called, synced is false and there is nothing else:
// Tracker.WaitingFor says why. A revision of 0 is that of a cluster without any object.
func (v *View) TakeRevision() (changes *model.Changes, triggers []time.Time, revision uint64, synced bool) {
	t := v.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.synced {
		return nil, nil, 0, false
	}
	t.counts.PendingServices, t.counts.PendingEndpointSlices = 0, 0
	v.full = v.full || v.forgotten()
	changes = &model.Changes{Full: v.full, Ports: map[model.PortID]*model.ServicePort{}}
	times := v.takePorts(changes)
	slices.SortFunc(times, time.Time.Compare)
	v.takeNode(changes)
	v.takeServiceCIDRs(changes)
	v.full, v.seen, v.resumed = false, t.changes.revision, 0
	v.tookTriggers()
	t.deleteTombstones()
	if changes.Empty() {
		changes = nil
	}
	return changes, times, v.seen, true
}

// Behind returns about how many Services the next Take has to look at. It is 0 before Synced was called.
func (v *View) Behind() int {
	t := v.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.synced {
		return 0
	}
	all := len(t.entries)
	if v.full || v.lost != nil || v.forgotten() || v.zone != t.node(v.name).zone {
		return all
	}
	return min(int(t.changes.revision-v.seen), all)
}

// forgotten reports whether the Tracker has forgotten deletions that the client of a view that resumed does not know.
func (v *View) forgotten() bool { return v.resumed > 0 && v.resumed < v.tracker.changes.horizon }

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

// resume makes the view continue after a revision, as if it had published everything up to that.
func (v *View) resume(revision uint64) {
	t := v.tracker
	n := t.node(v.name)
	v.full, v.seen, v.timed, v.resumed, v.zone = false, revision, revision, revision, n.zone
	if n.changed <= revision {
		v.node = n
	}
	if t.cidrsChanged <= revision {
		v.ranges = t.serviceRanges()
	}
	if n.moved > revision {
		v.seen = 0
		return
	}
	for e := t.changes.ends.next; e != &t.changes.ends && e.changed <= revision; e = e.next {
		*v.place(e) = t.publish(e, v.where(), nil)
	}
}

// where returns the view's node and its zone.
func (v *View) where() place { return place{v.name, v.zone} }

// has reports whether the view has published the current state of an entry, as seen from that place.
func (v *View) has(e *entry, from place) bool {
	return v.seen >= e.changed && v.lost == nil && int(e.index) < len(v.published) && from == v.where()
}

// place returns the view's slot for the published ports of an entry.
func (v *View) place(e *entry) **published {
	if missing := int(e.index) + 1 - len(v.published); missing > 0 {
		if v.published == nil {
			missing = int(v.tracker.changes.size)
		}
		v.published = append(v.published, make([]*published, missing)...)
	}
	return &v.published[e.index]
}

// takePorts puts the ports that are different into changes. It returns the times of the events that led to them, in any order.
func (v *View) takePorts(changes *model.Changes) (times []time.Time) {
	t := v.tracker
	if zone := t.node(v.name).zone; zone != v.zone || v.lost != nil {
		v.zone, v.seen = zone, 0
	}
	lost := v.lost
	v.lost = nil
	t.changes.since(v.seen, func(e *entry) {
		v.recompute(e, changes.Ports)
		times = v.appendTriggers(times, e)
	})
	// Do not keep the endpoints of deleted slices alive.
	clear(t.scratch[:cap(t.scratch)])
	if changes.Full {
		v.everything(changes)
		return times
	}
	for id, old := range lost {
		if now, is := changes.Ports[id]; !is {
			changes.Ports[id] = nil
		} else if now != nil && now.EqualFor(old, v.keys) {
			delete(changes.Ports, id)
		}
	}
	return times
}

// everything replaces the ports in changes by all ports.
func (v *View) everything(changes *model.Changes) {
	changes.Ports = make(map[model.PortID]*model.ServicePort, len(v.published))
	for _, p := range v.published {
		for _, port := range p.list() {
			changes.Ports[port.ID] = port
		}
	}
}

// recompute updates the ports of one Service and adds those that differ to changed. A port that is
// equal to the old one keeps its old ServicePort.
func (v *View) recompute(e *entry, changed map[model.PortID]*model.ServicePort) {
	kept := v.place(e)
	old := *kept
	now := v.tracker.publish(e, v.where(), old)
	*kept = now
	if v.resumed > 0 && e.served != nil {
		for _, gone := range e.served.gone {
			if _, isBack := findPort(now.list(), gone.id); gone.revision > v.resumed && !isBack {
				changed[gone.id] = nil
			}
		}
	}
	if old == now {
		return
	}
	for _, port := range old.list() {
		if _, found := findPort(now.list(), port.ID); !found {
			changed[port.ID] = nil
		}
	}
	for _, port := range now.list() {
		j, found := findPort(old.list(), port.ID)
		if found && old.ports[j].EqualFor(port, v.keys) {
			continue
		}
		changed[port.ID] = port
	}
}

// detach keeps the published ports in lost, so that the tracker can delete their entries.
func (v *View) detach() {
	if v.lost == nil {
		v.lost = map[model.PortID]*model.ServicePort{}
	}
	for _, p := range v.published {
		for _, port := range p.list() {
			v.lost[port.ID] = port
		}
	}
	v.published, v.seen = nil, v.tracker.changes.revision
}

func (v *View) takeNode(changes *model.Changes) {
	now := v.tracker.node(v.name)
	if changes.Full || v.node == nil || v.node != now && !v.node.sameForBackend(now) {
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
	// A view that resumed does not know what was handed out before they changed.
	unknown := v.resumed > 0 && t.cidrsChanged > v.resumed
	if changes.Full || unknown || !slices.Equal(ranges, v.ranges) {
		changes.ServiceCIDRs, changes.ServiceCIDRsChanged = ranges, true
		v.ranges = ranges
	}
}
