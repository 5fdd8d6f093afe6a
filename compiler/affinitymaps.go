package compiler

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// Affinity is the handle on the maps that packets fill: for each Service port with sessionAffinity ClientIP one or two
// maps from clients to endpoints. Only the kernel knows their elements. Whoever commits the rulesets reads the maps,
// asks Affinity which elements have to change, and changes them.
type Affinity struct {
	families families
}

// Affinity returns the handle on session affinity. It follows the compiler, and is no safer for concurrent use.
func (c *Compiler) Affinity() Affinity { return Affinity{c.families} }

// AffinityMap is one map from clients to endpoints, as it is wanted at one moment. Later changes of the model do not
// change it.
type AffinityMap struct {
	// Table has the family and the name of the table that the map is in, and nothing else.
	Table *nft.Table
	// Set describes the map, and has no elements.
	Set *nft.Set
	// Port is the Service port that the map is of.
	Port      model.PortID
	timeout   time.Duration
	endpoints []model.Endpoint
}

// Serves reports whether the endpoint that an element of the map leads to still serves the map's clients. If
// not, the element must go.
func (m AffinityMap) Serves(e nft.Element) bool {
	return hasEndpoint(m.endpoints, decodeEndpoint(e.Value))
}

// Element returns the element that a connection of a client to an endpoint adds to the map.
func (m AffinityMap) Element(client netip.Addr, endpoint netip.AddrPort) nft.Element {
	return nft.Element{
		Key:     nft.AddrData(client),
		Value:   nft.AddrData(endpoint.Addr()) + nft.PortData(endpoint.Port()),
		Timeout: m.timeout, Expires: m.timeout,
	}
}

// SameEndpoints reports whether two states of one map have the same endpoints.
func (m AffinityMap) SameEndpoints(o AffinityMap) bool { return slices.Equal(m.endpoints, o.endpoints) }

// IsAffinityMap reports whether a set of the name is a map from clients to endpoints.
func IsAffinityMap(name string) bool {
	return slices.ContainsFunc(affinityMapPrefixes[:], func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// Maps returns all maps that the rulesets have, in no order.
func (a Affinity) Maps() (maps []AffinityMap) {
	for _, f := range a.families {
		for _, p := range f.affinity.ports {
			maps = f.appendMaps(maps, p, func(affinityUse) bool { return true })
		}
	}
	return maps
}

// Stale returns the maps that may have clients of endpoints that do not serve them any more: since Reconciled was
// called for the map, an endpoint went. In no order. It costs as much as there are.
func (a Affinity) Stale() (maps []AffinityMap) {
	for _, f := range a.families {
		for p := range f.affinity.stale {
			maps = f.appendMaps(maps, p, func(use affinityUse) bool { return use.stale })
		}
	}
	return maps
}

// Losing returns those stale maps that lose an endpoint by the transaction to be committed, or that the kernel may
// have from a process before this one. In no order.
func (a Affinity) Losing() (maps []AffinityMap) {
	for _, f := range a.families {
		for p := range f.affinity.losing {
			maps = f.appendMaps(maps, p, func(use affinityUse) bool { return use.losing })
		}
	}
	return maps
}

func (f *family) affinityCommitted() {
	clear(f.affinity.moves)
	for p := range f.affinity.losing {
		for _, list := range endpointLists {
			p.lists[list].losing = false
		}
	}
	clear(f.affinity.losing)
}

// appendMaps appends those maps of a port that choose wants.
func (f *family) appendMaps(maps []AffinityMap, p *affinityPort, choose func(affinityUse) bool) []AffinityMap {
	for _, list := range endpointLists {
		if p.has(list) && choose(p.lists[list]) {
			maps = append(maps, f.affinityMap(p, list))
		}
	}
	return maps
}

func (f *family) affinityMap(p *affinityPort, list endpointList) AffinityMap {
	return AffinityMap{
		Table: &nft.Table{Family: f.family, Name: TableName}, Set: f.affinitySet(p.mapName(list)),
		Port: p.id, timeout: p.timeout, endpoints: p.lists[list].endpoints,
	}
}

// Current returns the map as it is wanted now; false if it is not wanted any more.
func (a Affinity) Current(m AffinityMap) (AffinityMap, bool) {
	f := a.families.of(m.Port.Family)
	if p := f.affinity.ports[affinityName(m.Port)]; p != nil {
		for _, list := range endpointLists {
			if p.mapName(list) == m.Set.Name && p.has(list) {
				return f.affinityMap(p, list), true
			}
		}
	}
	return AffinityMap{}, false
}

// Reconciled says that the kernel's map has no clients of endpoints other than those of m. If an endpoint
// went since m was returned, the map stays stale.
func (a Affinity) Reconciled(m AffinityMap) {
	f := a.families.of(m.Port.Family)
	p := f.affinity.ports[affinityName(m.Port)]
	if p == nil {
		return
	}
	for _, list := range endpointLists {
		if use := &p.lists[list]; p.mapName(list) == m.Set.Name && !lost(m.endpoints, use.endpoints) {
			use.stale = false
		}
	}
	if !slices.ContainsFunc(p.lists[:], func(use affinityUse) bool { return use.stale }) {
		delete(f.affinity.stale, p)
	}
}

// AffinityMove is a reason to copy clients from one map to another: the traffic policy of a Service port changed, and
// frontends that used the one map use the other.
type AffinityMove struct{ From, To AffinityMap }

// Moves returns the moves that the transaction to be committed causes, in no order. The kernel still has From, and
// may not have To.
func (a Affinity) Moves() (moves []AffinityMove) {
	for _, f := range a.families {
		for name := range f.affinity.moves {
			moves = append(moves, f.movesOf(name)...)
		}
	}
	return moves
}

func (f *family) movesOf(name string) (moves []AffinityMove) {
	p := f.affinity.ports[name]
	if p == nil {
		return nil
	}
	for _, to := range endpointLists {
		from := listLocal - to
		came := p.has(to) && !f.kernelHas(p, to)
		went := f.kernelHas(p, from) && !p.has(from)
		if p.has(to) && f.kernelHas(p, from) && (came || went) {
			moves = append(moves, AffinityMove{f.affinityMap(p, from), f.affinityMap(p, to)})
		}
	}
	return moves
}

// has reports whether a port has a map for the list.
func (p *affinityPort) has(list endpointList) bool { return p.lists[list].frontends > 0 }

// kernelHas reports whether a port had a map for the list at the last commit.
func (f *family) kernelHas(p *affinityPort, list endpointList) bool {
	if before, changed := f.draft.SetBefore(p.mapName(list)); changed {
		return before != nil
	}
	return p.has(list)
}

// ConnectionElements calls do with the elements that a connection in conntrack would have added to the maps: one for
// each map that its client uses and whose endpoints include the connection's.
func (a Affinity) ConnectionElements(protocol model.Protocol, client netip.Addr, dialed, endpoint netip.AddrPort, do func(AffinityMap, nft.Element)) {
	f := a.families.of(model.FamilyOf(dialed.Addr()))
	want := f.applied(frontend{dialed.Addr(), dialed.Port(), protocol})
	if want == &noPlan {
		want = f.applied(frontend{port: dialed.Port(), protocol: protocol})
	}
	if want.affinity == nil {
		return
	}
	for _, l := range want.lists() {
		if hasEndpoint(l.endpoints, endpoint) && f.mayUse(want, l.list, client) {
			m := f.affinityMap(f.affinity.ports[want.affinity.name], l.list)
			do(m, m.Element(client, endpoint))
		}
	}
}

// mayUse reports whether a client may be one of those that a plan sends to endpoints of the list.
func (f *family) mayUse(p *plan, list endpointList, client netip.Addr) bool {
	if p.kind != kindLocal {
		return true
	}
	local, known := f.isLocalClient(client)
	return !known || local == (list == listCluster)
}

// Protocols returns the protocols of Service ports with affinity in a family, in no order.
func (a Affinity) Protocols(family model.Family) (protocols []model.Protocol) {
	for rule := range a.families.of(family).affinity.frontends {
		if !slices.Contains(protocols, rule.protocol) {
			protocols = append(protocols, rule.protocol)
		}
	}
	return protocols
}

func decodeEndpoint(value nft.Data) netip.AddrPort {
	n := len(value) - 4
	if n < 0 {
		return netip.AddrPort{}
	}
	addr, _ := netip.AddrFromSlice([]byte(value[:n]))
	return netip.AddrPortFrom(addr, uint16(value[n])<<8|uint16(value[n+1]))
}
