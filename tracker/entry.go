package tracker

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/model"
)

// entry holds the Service and the EndpointSlices of one Service name. Either may be missing.
type entry struct {
	service *service
	// slices is sorted by name.
	slices []*endpointSlice

	// changed is the revision of the last change to the entry; prev and next are the neighbours in the changeLog.
	changed    uint64
	prev, next *entry
	// index is the entry's place in View.published.
	index uint32
	// shared is nil without Options.EveryNode.
	shared *shared
}

// shared holds the ports of a Service for all nodes that no endpoint names, as its node or in a hint. Topology may
// differ by zone.
type shared struct {
	revision uint64
	byZone   map[string]*published
	// before holds the ports of the previous revision, for zones that are not in byZone yet.
	before map[string]*published
}

// empty reports whether the entry has neither a Service nor a slice.
func (e *entry) empty() bool { return e.service == nil && len(e.slices) == 0 }

// published holds the ports of one Service for one node or several nodes, sorted by ID. It is never modified.
type published struct{ ports []*model.ServicePort }

func (p *published) list() []*model.ServicePort {
	if p == nil {
		return nil
	}
	return p.ports
}

// names reports whether an endpoint of e is on the node, or has a hint for it.
func (e *entry) names(node string) bool {
	return slices.ContainsFunc(e.slices, func(s *endpointSlice) bool { return s.codeOf(node) != noNode })
}

// zoned reports whether endpoints have hints for zones.
func (e *entry) zoned() bool {
	return slices.ContainsFunc(e.slices, func(s *endpointSlice) bool {
		return slices.ContainsFunc(s.hints, func(h hint) bool { return len(h.zones) > 0 })
	})
}

// findPort returns the port with an ID in a sorted list, nil for none.
func findPort(ports []*model.ServicePort, id model.PortID) *model.ServicePort {
	i, found := slices.BinarySearchFunc(ports, id, func(p *model.ServicePort, id model.PortID) int { return p.ID.Compare(id) })
	if !found {
		return nil
	}
	return ports[i]
}

// changeLog has all entries, ordered by their last change. A view that has seen all changes up to a revision finds
// newer changes from the end, so slow views need no queues.
type changeLog struct {
	// revision grows with each change.
	revision uint64
	// ends is the entry before the oldest and after the newest, so that each entry has two neighbours. Its revision is
	// 0.
	ends entry
	// size is one more than the largest index. free holds the unused indexes below it.
	size uint32
	free []uint32
	// gone holds the last Options.History ports that Services lost, oldest first, for views that resume. horizon is the
	// revision of the latest forgotten port.
	gone    []gonePort
	horizon uint64
}

// gonePort is a port that a Service lost, at a revision.
type gonePort struct {
	id       model.PortID
	revision uint64
}

// next returns the revision of a new change.
func (l *changeLog) next() uint64 {
	l.revision++
	return l.revision
}

// add gives a new entry its index.
func (l *changeLog) add(e *entry) {
	if n := len(l.free); n > 0 {
		e.index, l.free = l.free[n-1], l.free[:n-1]
	} else {
		e.index = l.size
		l.size++
	}
	l.append(e)
}

// touch notes that e changed now.
func (l *changeLog) touch(e *entry) {
	e.changed = l.next()
	l.unlink(e)
	l.append(e)
}

func (l *changeLog) append(e *entry) {
	e.prev, e.next = l.ends.prev, &l.ends
	e.prev.next, l.ends.prev = e, e
}

func (l *changeLog) unlink(e *entry) { e.prev.next, e.next.prev = e.next, e.prev }

// goneSince returns the ports in gone after a revision.
func (l *changeLog) goneSince(revision uint64) []gonePort {
	i, _ := slices.BinarySearchFunc(l.gone, revision+1, func(g gonePort, revision uint64) int { return cmp.Compare(g.revision, revision) })
	return l.gone[i:]
}

// noteGone records the ports that a Service loses by the next change.
func (t *Tracker) noteGone(e *entry, now *service) {
	l := &t.changes
	if t.options.History == 0 || e.service == nil {
		return
	}
	for i := range e.service.ports {
		id := e.service.ports[i].ID
		if now == nil || !slices.ContainsFunc(now.ports, func(p *model.ServicePort) bool { return p.ID == id }) {
			l.gone = append(l.gone, gonePort{id, l.revision + 1})
		}
	}
	if extra := len(l.gone) - t.options.History; extra > 0 {
		l.horizon, l.gone = l.gone[extra-1].revision, l.gone[extra:]
	}
}

// trigger is the time of the event that led to a change of a Service's slices, and the revision of that change.
type trigger struct {
	entry    *entry
	revision uint64
	when     time.Time
}

// noteTrigger records the time of the event that led to the latest change of a Service's slices. The EndpointSlice
// controller writes it into an annotation, for the network programming latency SLI. Events from before the start of
// this process say nothing about its latency, and do not count. The oldest model.MaxTriggers times that views have not
// taken stay, because they show the longest latency. Without a Service, e is nil.
func (t *Tracker) noteTrigger(e *entry, annotations map[string]string) {
	text, ok := annotations[corev1.EndpointsLastChangeTriggerTime]
	if !ok || e == nil {
		return
	}
	when, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !when.After(t.started) {
		return
	}
	if len(t.triggers) >= model.MaxTriggers {
		taken := t.changes.revision
		for v := range t.views {
			taken = min(taken, v.seen)
		}
		t.triggers = t.triggers[len(t.triggers)-len(t.triggersSince(taken)):]
	}
	if len(t.triggers) < model.MaxTriggers {
		t.triggers = append(t.triggers, trigger{e, e.changed, when})
	}
}

// triggersSince returns the triggers after a revision.
func (t *Tracker) triggersSince(revision uint64) []trigger {
	i, _ := slices.BinarySearchFunc(t.triggers, revision+1, func(tr trigger, revision uint64) int { return cmp.Compare(tr.revision, revision) })
	return t.triggers[i:]
}
