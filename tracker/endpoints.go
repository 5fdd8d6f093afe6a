package tracker

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// candidate is an endpoint of one Service port, before the selection for the lists.
type candidate struct {
	model.Endpoint
	*sliceEndpoint
	*hint
	// hintsThisNode says that this node is one of the hint's nodes.
	hintsThisNode bool
}

// fill sets the endpoint lists of port from the slices of its Service, as the node sees them. It returns scratch for
// reuse by the next call.
func fill(port *model.ServicePort, from []*endpointSlice, seenFrom place, scratch []candidate) []candidate {
	port.Local, port.LocalTerminating, port.Serving, port.NotServing = nil, false, nil, nil
	candidates := withoutDuplicates(gather(scratch[:0], port.ID, from, seenFrom.node))
	port.Cluster = clusterList(candidates, seenFrom.zone, port.DirectReturn)
	if port.InternalPolicy == model.PolicyLocal || port.ExternalPolicy == model.PolicyLocal {
		port.Local, port.LocalTerminating = localList(candidates)
	}
	if port.ID.Protocol == model.UDP || port.DirectReturn {
		// A ready endpoint may not serve: publishNotReadyAddresses makes it ready.
		port.Serving = pick(candidates, func(c candidate) bool { return c.ready || c.serving }, addrPort)
		if port.Serving == nil {
			port.NotServing = pick(candidates, func(candidate) bool { return true }, addrPort)
		}
	}
	return candidates
}

// gather appends the endpoints of a port in the slices to into. A port name may have two numbers in one slice, and
// other numbers in other slices (named target ports).
func gather(into []candidate, id model.PortID, from []*endpointSlice, node string) []candidate {
	for _, slice := range from {
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
	hint := &noHint
	if e.hint > 0 {
		hint = &s.hints[e.hint-1]
	}
	return candidate{
		Endpoint: model.Endpoint{
			AddrPort: netip.AddrPortFrom(s.addrOf(e), port),
			Local:    e.node != noNode && e.node == this,
			Remote:   e.node != noNode && e.node != this,
			Info:     s.infoOf(i),
		},
		sliceEndpoint: e,
		hint:          hint,
		hintsThisNode: this != noNode && slices.Contains(hint.nodes, this),
	}
}

// withoutDuplicates sorts candidates by address and drops duplicates. Two slices may hold one address and disagree:
// while an endpoint moves from one slice to another, or when a new pod gets the address of one that still terminates,
// perhaps on another node. The candidate of highest rank wins, so the result does not depend on the order of events.
func withoutDuplicates(candidates []candidate) []candidate {
	if !slices.IsSortedFunc(candidates, compareCandidates) {
		slices.SortStableFunc(candidates, compareCandidates)
	}
	return slices.CompactFunc(candidates, func(a, b candidate) bool { return a.AddrPort == b.AddrPort })
}

// compareCandidates orders by address, then by rank, highest first.
func compareCandidates(a, b candidate) int {
	if c := a.AddrPort.Compare(b.AddrPort); c != 0 {
		return c
	}
	return b.rank() - a.rank()
}

// rank prefers an endpoint that does not terminate, then one that is ready, then one that serves, then one on this
// node. Packets to the address reach the pod that has it now: the pod that does not terminate, even if it is not ready
// yet. kube-proxy prefers this pod too, and leaves the rest undefined.
func (c candidate) rank() (rank int) {
	for _, better := range [...]bool{!c.terminating, c.ready, c.serving, c.Local} {
		rank *= 2
		if better {
			rank++
		}
	}
	return rank
}

// terminatingButServing is the fallback when nothing is ready (KEP-1669).
func (c candidate) terminatingButServing() bool { return c.serving && c.terminating }

// clusterList returns the endpoints for policy Cluster: ready endpoints that topology selects, or with everywhere all
// ready endpoints; or, if none is ready, endpoints that still serve while they terminate.
func clusterList(candidates []candidate, zone string, everywhere bool) []model.Endpoint {
	near := nearby(candidates, zone)
	ready := pick(candidates, func(c candidate) bool { return c.ready && (everywhere || near(c)) }, endpoint)
	if ready != nil {
		return ready
	}
	return pick(candidates, candidate.terminatingButServing, endpoint)
}

// localList returns the endpoints for policy Local. terminating says that they are the fallback: none
// is ready, but some still serve.
func localList(candidates []candidate) (list []model.Endpoint, terminating bool) {
	ready := pick(candidates, func(c candidate) bool { return c.Local && c.ready }, endpoint)
	if ready != nil {
		return ready, false
	}
	list = pick(candidates, func(c candidate) bool { return c.Local && c.terminatingButServing() }, endpoint)
	return list, list != nil
}

func endpoint(c candidate) model.Endpoint { return c.Endpoint }

func addrPort(c candidate) netip.AddrPort { return c.AddrPort }

// pick returns part of each candidate that wanted accepts. The list has no spare capacity, because a backend
// keeps it for as long as the Service exists.
func pick[T any](candidates []candidate, wanted func(candidate) bool, part func(candidate) T) []T {
	count := 0
	for _, c := range candidates {
		if wanted(c) {
			count++
		}
	}
	if count == 0 {
		return nil
	}
	list := make([]T, 0, count)
	for _, c := range candidates {
		if wanted(c) {
			list = append(list, part(c))
		}
	}
	return list
}

// nearby returns a function that reports whether topology selects a ready endpoint for this node: endpoints with a hint
// for the node (KEP-4444, trafficDistribution PreferSameNode), else with a hint for its zone (KEP-2433), else all.
// Hints count only if every ready endpoint has a hint and at least one matches. Otherwise a cluster in the middle of an
// update would lose endpoints.
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

func (c candidate) hintsZone(zone string) bool { return zone != "" && slices.Contains(c.zones, zone) }
