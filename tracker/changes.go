package tracker

import (
	"maps"
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/model"
)

// Dirty returns a channel that receives after something happened for which Changes may
// have news. Many events make one receive. It is never closed, and has one reader.
func (t *Tracker) Dirty() <-chan struct{} {
	return t.own.wake
}

// Changes returns the difference between now and the last call, or nil if there is none
// or Synced was not called yet. The first result is Full. What happened and was undone in
// between does not show. The caller owns the Changes; the ServicePorts in it are shared
// and must not be modified.
func (t *Tracker) Changes() *model.Changes {
	changes, _ := t.Take()
	return changes
}

// Resync makes the next Changes Full, for a backend that lost its state.
func (t *Tracker) Resync() { t.own.Resync() }

// Take returns Changes, and the times of the events that led to them, oldest first, as far as
// EndpointSlices tell (annotation endpoints.kubernetes.io/last-change-trigger-time).
func (t *Tracker) Take() (*model.Changes, []time.Time) { return t.own.Take() }

// publish returns the ports of a Service with their endpoints, as a node sees them. What came out as it was in old, which
// may be nil, is the same.
func (t *Tracker) publish(e *entry, from place, old *published) *published {
	switch {
	case t.options.EveryNode && !e.names(from.node):
		return t.publishShared(e, from, old)
	case t.own != nil && t.own.has(e, from):
		return t.own.handed[e.index]
	}
	return t.join(e, from, old)
}

// publishShared is publish for all nodes of a zone that the Service's endpoints do not name.
func (t *Tracker) publishShared(e *entry, from place, old *published) *published {
	lists := &e.forMany().lists
	if lists.revision != e.changed {
		*lists = sharedLists{revision: e.changed, before: lists.byZone, byZone: map[string]*published{}}
	}
	zone := ""
	if e.zoned() {
		zone = from.zone
	}
	now, known := lists.byZone[zone]
	if !known {
		if before := lists.before[zone]; before != nil {
			old = before
		}
		now = t.join(e, place{zone: zone}, old)
		lists.byZone[zone] = now
		delete(lists.before, zone)
	}
	return now
}

// join returns the ports of a Service as a node sees them, nil if there are none.
func (t *Tracker) join(e *entry, from place, old *published) *published {
	if e.service == nil || len(e.service.ports) == 0 {
		return nil
	}
	same := old != nil && len(old.ports) == len(e.service.ports)
	ports := make([]*model.ServicePort, 0, len(e.service.ports))
	for _, port := range e.service.ports {
		t.scratch = fill(&port, e.slices, from, t.scratch)
		if j, found := findPort(old.list(), port.ID); found && old.ports[j].Equal(&port) {
			ports = append(ports, old.ports[j])
			continue
		}
		same = false
		ports = append(ports, &port)
	}
	if same {
		return old
	}
	return &published{ports}
}

// serviceRanges returns the ranges of all ServiceCIDRs, sorted.
func (t *Tracker) serviceRanges() (ranges []netip.Prefix) {
	for cidr := range maps.Values(t.cidrs) {
		ranges = append(ranges, cidr.ranges...)
	}
	return sortedSet(ranges, comparePrefixes)
}
