package tracker

import (
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/model"
)

// Dirty returns a channel that receives after events for which Changes may have news. Many events
// make one receive. The channel is never closed, and may have one reader only. Dirty panics on a
// Tracker without a node of its own: see Options.EveryNode.
func (t *Tracker) Dirty() <-chan struct{} {
	return t.ownView("Dirty").wake
}

// Changes returns the difference between now and the last call, or nil if there is none
// or Synced was not called yet. The first result is Full. A change that was undone between two
// calls does not show. The caller owns the Changes; the ServicePorts in it are shared
// and must not be modified. Changes panics on a Tracker without a node of its own: see
// Options.EveryNode.
func (t *Tracker) Changes() *model.Changes {
	changes, _ := t.ownView("Changes").Take()
	return changes
}

// Resync makes the next Changes Full, for a backend that lost its state. It panics on a Tracker
// without a node of its own: see Options.EveryNode.
func (t *Tracker) Resync() { t.ownView("Resync").Resync() }

// Take returns Changes, and the times of the events that led to them, oldest first, as far as
// EndpointSlices tell (annotation endpoints.kubernetes.io/last-change-trigger-time). It panics on a
// Tracker without a node of its own: see Options.EveryNode.
func (t *Tracker) Take() (*model.Changes, []time.Time) { return t.ownView("Take").Take() }

// ownView returns the view of the node in options. It panics if there is none.
func (t *Tracker) ownView(method string) *View {
	if t.own == nil {
		panic("tracker: " + method + " needs a node, and this Tracker has none: set Options.NodeName, or take the changes of a node from Tracker.View")
	}
	return t.own
}

// publish returns the ports of a Service with their endpoints, as a node sees them. Ports that are equal to those in
// old, which may be nil, are the same objects.
func (t *Tracker) publish(e *entry, from place, old *published) *published {
	switch {
	case t.options.EveryNode && !e.names(from.node):
		return t.publishShared(e, from, old)
	case t.own != nil && t.own.has(e, from):
		return t.own.published[e.index]
	}
	return t.join(e, from, old)
}

// publishShared is publish for all nodes of a zone that the Service's endpoints do not name.
func (t *Tracker) publishShared(e *entry, from place, old *published) *published {
	shared := e.forMany()
	if shared.revision != e.changed {
		shared.revision, shared.before, shared.byZone = e.changed, shared.byZone, map[string]*published{}
	}
	zone := ""
	if e.zoned() {
		zone = from.zone
	}
	now, known := shared.byZone[zone]
	if !known {
		if before := shared.before[zone]; before != nil {
			old = before
		}
		now = t.join(e, place{zone: zone}, old)
		shared.byZone[zone] = now
		delete(shared.before, zone)
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
	for _, cidr := range t.cidrs {
		ranges = append(ranges, cidr.ranges...)
	}
	return sortedSet(ranges, netip.Prefix.Compare)
}
