package compiler

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// affinityPort is the session affinity of one Service port: its maps, and the chains that fill them.
type affinityPort struct {
	// planAffinity is that of the plan used last.
	*planAffinity
	lists [len(endpointLists)]affinityUse
	// known holds the use of the chains for known clients.
	known map[chainKind]*knownUse
}

// knownUse is the use of a chain that sends known clients to their endpoint.
type knownUse struct {
	frontends int
	// plan is that of the frontends.
	plan *plan
}

// affinityUse is the use of one list of a port.
type affinityUse struct {
	// frontends is how many use the list. The map exists while there are any.
	frontends int
	endpoints []model.Endpoint
}

// portList identifies one list of a port, and its map.
type portList struct {
	port *affinityPort
	list endpointList
}

func (p *affinityPort) mapName(list endpointList) string { return affinityMapPrefixes[list] + p.name }

// useAffinity counts one more frontend with the plan. It returns the chain that adds its clients to a map, and the
// chain that sends known clients to their endpoint.
func (f *family) useAffinity(want *plan) (update, known string) {
	p := f.affinity.ports[want.affinity.name]
	if p == nil {
		p = &affinityPort{planAffinity: want.affinity, known: map[chainKind]*knownUse{}}
		f.affinity.ports[p.name] = p
		f.updateAffinitySize()
	}
	p.planAffinity = want.affinity
	lists := want.lists()
	for _, list := range lists {
		f.useAffinityList(p, list.list, list.endpoints)
	}
	update = affinityChainPrefixes[lists[0].list] + p.name
	if want.kind == kindLocal {
		update = affinityShortCircuitPrefix + p.name
	}
	if p.known[want.kind] == nil {
		p.known[want.kind] = &knownUse{}
	}
	p.known[want.kind].frontends++
	p.known[want.kind].plan = want
	f.putAffinityChoices(p)
	return update, affinityKnownName(p, want.kind)
}

// affinityKnownName returns the name of the chain that sends known clients to their endpoint.
func affinityKnownName(p *affinityPort, kind chainKind) string {
	return affinityKnownPrefix + kind.String() + "." + p.name
}

// putAffinityChoices puts the chains of a port that depend on which lists have a map, and on who is a client of the
// cluster. It removes those that no frontend needs.
func (f *family) putAffinityChoices(p *affinityPort) {
	for kind, use := range p.known {
		f.putChainIf(use.frontends > 0, f.affinityKnown(p, use.plan))
		if use.frontends == 0 {
			delete(p.known, kind)
		}
	}
	f.putChainIf(p.known[kindLocal] != nil, f.affinityShortCircuit(p))
}

func (f *family) useAffinityList(p *affinityPort, list endpointList, endpoints []model.Endpoint) {
	use := &p.lists[list]
	stale := lost(use.endpoints, endpoints)
	if use.frontends == 0 {
		f.draft.PutSet(f.affinitySet(p.mapName(list)))
		// Unless the next commit adds the map, the kernel may have one of that name, with clients of an earlier process or
		// of an earlier Service of that name.
		_, new := f.draft.SetBefore(p.mapName(list))
		stale = !new
		f.noteMove(p)
	}
	if stale {
		f.affinity.stale[portList{p, list}], f.affinity.losing[portList{p, list}] = true, true
	}
	use.frontends++
	use.endpoints = endpoints
	f.draft.PutChain(f.affinityUpdate(p, list))
}

func (f *family) releaseAffinity(have *plan) {
	p := f.affinity.ports[have.affinity.name]
	p.known[have.kind].frontends--
	for _, list := range have.lists() {
		f.releaseAffinityList(p, list.list)
	}
	f.putAffinityChoices(p)
	if !p.has(listCluster) && !p.has(listLocal) {
		delete(f.affinity.ports, p.name)
		f.updateAffinitySize()
	}
}

func (f *family) releaseAffinityList(p *affinityPort, list endpointList) {
	use := &p.lists[list]
	use.frontends--
	if use.frontends > 0 {
		return
	}
	*use = affinityUse{}
	delete(f.affinity.stale, portList{p, list})
	delete(f.affinity.losing, portList{p, list})
	f.draft.RemoveChain(affinityChainPrefixes[list] + p.name)
	f.draft.RemoveSet(p.mapName(list))
	f.noteMove(p)
}

// noteMove notes that a map of a port came or went since the last commit, so its clients may have to move to the other
// one.
func (f *family) noteMove(p *affinityPort) {
	if f.draft.HasCommitted() {
		f.affinity.moves[p.name] = true
	}
}

// lost reports whether an endpoint of have is not in want. Both are sorted.
func lost(have, want []model.Endpoint) bool {
	return slices.ContainsFunc(have, func(e model.Endpoint) bool { return !hasEndpoint(want, e.AddrPort) })
}

func hasEndpoint(list []model.Endpoint, addr netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(list, addr, func(e model.Endpoint, addr netip.AddrPort) int { return e.AddrPort.Compare(addr) })
	return found
}
