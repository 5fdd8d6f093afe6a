package tracker

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// candidate is an endpoint of one Service port, before it is decided which lists it is in.
type candidate struct {
	addrPort netip.AddrPort
	// hint names the zones and nodes that should use it.
	*hint
	// local and remote say that it is on this node, or on another. Neither is set if the slice names no node.
	local, remote bool
	info          model.EndpointInfo
	// hintsThisNode says that one of the hint's nodes is this one.
	hintsThisNode bool

	ready, serving, terminating bool
}

// fill sets the endpoint lists of port from the slices of its Service, as the node sees them.
// It returns scratch for the next call to use again.
func fill(port *model.ServicePort, slices []*endpointSlice, seenFrom place, scratch []candidate) []candidate {
	candidates := withoutDuplicates(gather(scratch[:0], port.ID, slices, seenFrom.node))
	port.Cluster = clusterList(candidates, seenFrom.zone)
	if port.InternalPolicy == model.PolicyLocal || port.ExternalPolicy == model.PolicyLocal {
		port.Local, port.LocalTerminating = localList(candidates)
	}
	if port.ID.Protocol == model.UDP {
		port.Serving = addrPorts(candidates, candidate.keepsFlows)
		if port.Serving == nil {
			port.NotServing = addrPorts(candidates, func(candidate) bool { return true })
		}
	}
	return candidates
}

// gather appends the endpoints of a port in the slices to into. A slice may give one port name
// two numbers, and different slices may give it different ones (named target ports).
func gather(into []candidate, id model.PortID, slices []*endpointSlice, node string) []candidate {
	for _, slice := range slices {
		if slice.family != id.Family {
			continue
		}
		this := slice.codeOf(node)
		for _, port := range slice.ports {
			if port.name != id.Port || port.protocol != id.Protocol {
				continue
			}
			for i := range slice.endpoints {
				into = append(into, slice.candidate(i, port.number, this))
			}
		}
	}
	return into
}

// candidate returns the endpoint of s at i as the node with the code this sees it.
func (s *endpointSlice) candidate(i int, port uint16, this nodeCode) candidate {
	e := &s.endpoints[i]
	c := candidate{
		info:     s.infoOf(i),
		addrPort: netip.AddrPortFrom(s.addrOf(e), port),
		hint:     s.hintOf(e),
		local:    e.node != noNode && e.node == this,
		remote:   e.node != noNode && e.node != this,
		ready:    e.ready, serving: e.serving, terminating: e.terminating,
	}
	c.hintsThisNode = this != noNode && slices.Contains(c.nodes, this)
	return c
}

// withoutDuplicates sorts candidates by address and drops duplicates. Two slices may hold one address
// and disagree: while an endpoint moves from one slice to another, or when a new pod gets
// the address of one that still terminates, perhaps on another node. The one of higher rank wins, so
// the result does not depend on the order of events.
func withoutDuplicates(candidates []candidate) []candidate {
	if !slices.IsSortedFunc(candidates, compareCandidates) {
		slices.SortStableFunc(candidates, compareCandidates)
	}
	return slices.CompactFunc(candidates, func(a, b candidate) bool { return a.addrPort == b.addrPort })
}

// compareCandidates orders by address, and among equal ones by rank, highest first.
func compareCandidates(a, b candidate) int {
	if c := a.addrPort.Compare(b.addrPort); c != 0 {
		return c
	}
	return b.rank() - a.rank()
}

// rank prefers an endpoint that is ready, then one that serves, then one that does not terminate.
// Among equals it prefers the one on this node.
func (c candidate) rank() (rank int) {
	if c.ready {
		rank += 8
	}
	if c.serving {
		rank += 4
	}
	if !c.terminating {
		rank += 2
	}
	if c.local {
		rank++
	}
	return rank
}

// terminatingButServing is the fallback when nothing is ready (KEP-1669).
func (c candidate) terminatingButServing() bool {
	return c.serving && c.terminating
}

// clusterList returns the endpoints for policy Cluster: the ready ones that topology leaves, or, if
// none is ready, those that still serve while they terminate.
func clusterList(candidates []candidate, zone string) []model.Endpoint {
	near := nearby(candidates, zone)
	ready := pick(candidates, func(c candidate) bool { return c.ready && near(c) })
	if ready != nil {
		return ready
	}
	return pick(candidates, candidate.terminatingButServing)
}

// localList returns the endpoints for policy Local. terminating says that they are the fallback: none
// is ready, but some still serve.
func localList(candidates []candidate) (list []model.Endpoint, terminating bool) {
	ready := pick(candidates, func(c candidate) bool { return c.local && c.ready })
	if ready != nil {
		return ready, false
	}
	list = pick(candidates, func(c candidate) bool { return c.local && c.terminatingButServing() })
	return list, list != nil
}

// keepsFlows reports whether existing flows may stay with the endpoint. A ready endpoint may not serve:
// publishNotReadyAddresses makes it ready.
func (c candidate) keepsFlows() bool { return c.ready || c.serving }

// addrPorts returns the addresses of the candidates that wanted accepts.
func addrPorts(candidates []candidate, wanted func(candidate) bool) []netip.AddrPort {
	var list []netip.AddrPort
	for _, c := range candidates {
		if wanted(c) {
			list = append(list, c.addrPort)
		}
	}
	return list
}

// pick returns the candidates that wanted accepts. The list has no spare capacity, because a backend
// keeps it for as long as the Service exists.
func pick(candidates []candidate, wanted func(candidate) bool) []model.Endpoint {
	count := 0
	for _, c := range candidates {
		if wanted(c) {
			count++
		}
	}
	if count == 0 {
		return nil
	}
	list := make([]model.Endpoint, 0, count)
	for _, c := range candidates {
		if wanted(c) {
			list = append(list, model.Endpoint{AddrPort: c.addrPort, Local: c.local, Remote: c.remote, Info: c.info})
		}
	}
	return list
}

// nearby returns a function that reports whether topology leaves a ready endpoint for this node: the
// endpoints hinted for it (KEP-4444, trafficDistribution PreferSameNode), else those hinted for its
// zone (KEP-2433), else all. Hints count only if every ready endpoint has one and at least one
// matches. Otherwise a cluster in the middle of an update would lose endpoints.
func nearby(candidates []candidate, zone string) func(candidate) bool {
	allNode, anyNode := true, false
	allZone, anyZone := true, false
	for _, c := range candidates {
		if !c.ready {
			continue
		}
		allNode = allNode && len(c.nodes) > 0
		anyNode = anyNode || c.hintsThisNode
		allZone = allZone && len(c.zones) > 0
		anyZone = anyZone || c.hintsZone(zone)
	}
	switch {
	case allNode && anyNode:
		return func(c candidate) bool { return c.hintsThisNode }
	case allZone && anyZone:
		return func(c candidate) bool { return c.hintsZone(zone) }
	}
	return func(candidate) bool { return true }
}

func (c candidate) hintsZone(zone string) bool {
	return zone != "" && slices.Contains(c.zones, zone)
}
