package tracker

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/model"
)

// Dirty returns a channel that receives after something happened for which Changes may
// have news. Many events make one receive. It is never closed, and has one reader.
func (t *Tracker) Dirty() <-chan struct{} {
	return t.wake
}

// Changes returns the difference between now and the last call, or nil if there is none
// or Synced was not called yet. The first result is Full. What happened and was undone in
// between does not show. The caller owns the Changes; the ServicePorts in it are shared
// and must not be modified.
func (t *Tracker) Changes() *model.Changes {
	changes, _ := t.take()
	return changes
}

// Resync makes the next Changes Full, for a backend that lost its state.
func (t *Tracker) Resync() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.full = true
	t.signal()
}

// take returns Changes together with the times of the events that led to them.
func (t *Tracker) take() (*model.Changes, []time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.synced {
		return nil, nil
	}
	t.counts.PendingServices, t.counts.PendingEndpointSlices = 0, 0
	changes := &model.Changes{Full: t.full, Ports: make(map[model.PortID]*model.ServicePort, len(t.dirty))}
	t.takePorts(changes)
	t.takeNode(changes)
	t.takeServiceCIDRs(changes)
	t.full = false
	triggers := t.takeTriggers()
	if changes.Empty() {
		return nil, triggers
	}
	return changes, triggers
}

func (t *Tracker) takePorts(changes *model.Changes) {
	if t.allDirty {
		for name := range t.entries {
			t.dirty[name] = struct{}{}
		}
		t.allDirty = false
	}
	for name := range t.dirty {
		t.recompute(name, changes.Ports)
	}
	// Not clear: that costs what the map once held, which at start is everything.
	t.dirty = map[objectName]struct{}{}
	// Do not keep the endpoints of deleted slices alive.
	clear(t.scratch[:cap(t.scratch)])
	if !changes.Full {
		return
	}
	clear(changes.Ports)
	for _, e := range t.entries {
		for _, port := range e.handed {
			changes.Ports[port.ID] = port
		}
	}
}

// recompute brings the ports of one Service up to date and puts what is different into
// changed. A port that came out as it was keeps its old ServicePort.
func (t *Tracker) recompute(name objectName, changed map[model.PortID]*model.ServicePort) {
	e := t.entries[name]
	if e == nil {
		return
	}
	old := e.handed
	e.handed = t.join(e)
	for _, port := range old {
		if _, found := findPort(e.handed, port.ID); !found {
			changed[port.ID] = nil
		}
	}
	for i, port := range e.handed {
		j, found := findPort(old, port.ID)
		if found && old[j].Equal(port) {
			e.handed[i] = old[j]
			continue
		}
		changed[port.ID] = port
	}
	if e.service == nil && len(e.slices) == 0 {
		delete(t.entries, name)
	}
}

// join returns the ports of a Service with their endpoints, sorted by ID.
func (t *Tracker) join(e *entry) []*model.ServicePort {
	if e.service == nil || len(e.service.ports) == 0 {
		return nil
	}
	ports := make([]*model.ServicePort, 0, len(e.service.ports))
	for _, port := range e.service.ports {
		t.scratch = fill(&port, e.slices, t.node.zone, t.scratch)
		ports = append(ports, &port)
	}
	return ports
}

func findPort(ports []*model.ServicePort, id model.PortID) (int, bool) {
	return slices.BinarySearchFunc(ports, id, func(p *model.ServicePort, id model.PortID) int { return p.ID.Compare(id) })
}

func (t *Tracker) takeNode(changes *model.Changes) {
	if !t.nodeDirty && !changes.Full {
		return
	}
	t.nodeDirty = false
	if changes.Full || !t.handedNode.sameForBackend(t.node) {
		node := t.node.Node
		changes.Node = &node
		t.handedNode = t.node
	}
}

func (t *Tracker) takeServiceCIDRs(changes *model.Changes) {
	if !t.cidrsDirty && !changes.Full {
		return
	}
	t.cidrsDirty = false
	var ranges []netip.Prefix
	for cidr := range maps.Values(t.cidrs) {
		ranges = append(ranges, cidr.ranges...)
	}
	ranges = sortedSet(ranges, comparePrefixes)
	if changes.Full || !slices.Equal(ranges, t.handedRanges) {
		changes.ServiceCIDRs, changes.ServiceCIDRsChanged = ranges, true
		t.handedRanges = ranges
	}
}
