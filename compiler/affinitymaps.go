package compiler

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// Affinity is the handle on the maps that packets fill: for each Service port with sessionAffinity ClientIP, one or two
// maps from clients to endpoints. Only the kernel has their elements. The program that commits the rulesets reads the
// maps, asks Affinity which elements have to change, and changes them.
type Affinity struct {
	families families
}

// Affinity returns the handle on session affinity. It stays valid after each Apply. Like the Compiler, it is not safe
// for concurrent use.
func (c *Compiler) Affinity() Affinity { return Affinity{c.families} }

// AffinityMap is one map from clients to endpoints, as wanted at one moment. Later changes of the model do not change
// it.
type AffinityMap struct {
	// Table has the family and the name of the map's table, and nothing else.
	Table *nft.Table
	// Set is the map without elements.
	Set *nft.Set
	// Port is the map's Service port.
	Port model.PortID
	list endpointList
	port *portPlans
}

func (m AffinityMap) key() mapKey { return mapKey{m.port.affinityName, m.list} }

func (m AffinityMap) endpoints() []model.Endpoint { return m.port.list(m.list) }

// Serves reports whether an element's endpoint still serves the map's clients. If not, the element must be deleted.
func (m AffinityMap) Serves(e nft.Element) bool {
	endpoint, ok := ParseEndpoint(e.Value)
	return ok && hasEndpoint(m.endpoints(), endpoint)
}

// Element returns the element that a new connection from a client to an endpoint adds to the map.
func (m AffinityMap) Element(client netip.Addr, endpoint netip.AddrPort) nft.Element {
	return nft.Element{
		Key:     nft.AddrData(client),
		Value:   nft.AddrData(endpoint.Addr()) + nft.PortData(endpoint.Port()),
		Timeout: m.port.AffinityTimeout, Expires: m.port.AffinityTimeout,
	}
}

// SameEndpoints reports whether two states of one map have the same endpoints.
func (m AffinityMap) SameEndpoints(o AffinityMap) bool {
	return slices.Equal(m.endpoints(), o.endpoints())
}

// Maps returns all maps that the rulesets have, in no order.
func (a Affinity) Maps() (found []AffinityMap) {
	for _, f := range a.families {
		for key, port := range f.clientMaps.maps {
			found = append(found, f.affinityMap(port, key.list))
		}
	}
	return found
}

// Stale returns, in no order, the maps that may have clients of an endpoint that no longer serves them: the endpoint went
// since the last call of Cleaned for the map. The call takes time in proportion to the length of the result.
func (a Affinity) Stale() []AffinityMap { return a.stale(false) }

// Losing returns, in no order, the stale maps that lose an endpoint with the next commit, and stale maps that an earlier
// process may have left in the kernel.
func (a Affinity) Losing() []AffinityMap { return a.stale(true) }

func (a Affinity) stale(losing bool) (found []AffinityMap) {
	for _, f := range a.families {
		for key, now := range f.clientMaps.stale {
			if now || !losing {
				found = append(found, f.affinityMap(f.clientMaps.maps[key], key.list))
			}
		}
	}
	return found
}

func (f *family) affinityMap(port *portPlans, list endpointList) AffinityMap {
	return AffinityMap{
		Table: &nft.Table{Family: f.program.family, Name: TableNameFor(f.program.config.ServiceProxyName)},
		Set:   f.program.affinityMap(mapKey{port.affinityName, list}, f.clientMaps.size), Port: port.ID, list: list, port: port,
	}
}

// Current returns the map as it is wanted now; false if it is not wanted any more.
func (a Affinity) Current(m AffinityMap) (AffinityMap, bool) {
	f := a.families.get(m.Port.Family)
	port := f.clientMaps.maps[m.key()]
	if port == nil {
		return AffinityMap{}, false
	}
	return f.affinityMap(port, m.list), true
}

// Cleaned notes that the kernel's map has clients of the endpoints of m only. The map stays stale if an
// endpoint went since m was returned, or goes with the next commit: until then packets add clients of it.
func (a Affinity) Cleaned(m AffinityMap) {
	stale := a.families.get(m.Port.Family).clientMaps.stale
	if now, ok := a.Current(m); ok && !stale[m.key()] && !lost(m.endpoints(), now.endpoints()) {
		delete(stale, m.key())
	}
}

// AffinityMove is a reason to copy clients from one map to another: the traffic policy of a Service port changed, so
// that its frontends use another map.
type AffinityMove struct {
	// From is the map with the clients. To receives the clients whose endpoint it Serves.
	From, To AffinityMap
}

// Moves returns the moves that the next commit causes, in no order. Before that commit, the kernel still has From, and
// may not have To.
func (a Affinity) Moves() (moves []AffinityMove) {
	for _, f := range a.families {
		for to := range f.clientMaps.moves {
			from := to.other()
			inKernel := f.clientMaps.maps[from] != nil
			if before, changed := f.draft.SetBefore(from.mapName()); changed {
				inKernel = before != nil
			}
			if port := f.clientMaps.maps[to]; port != nil && inKernel {
				moves = append(moves, AffinityMove{f.affinityMap(port, from.list), f.affinityMap(port, to.list)})
			}
		}
	}
	return moves
}

// ConnectionElements calls do with the elements that a connection in conntrack would have added to the maps: one for
// each map that the client may use and that has the connection's endpoint. dialed is the address and port that the
// client dialed.
func (a Affinity) ConnectionElements(protocol model.Protocol, client netip.Addr, dialed, endpoint netip.AddrPort, do func(AffinityMap, nft.Element)) {
	f := a.families.get(model.FamilyOf(dialed.Addr()))
	want := f.claims.applied(frontend{dialed.Addr(), dialed.Port(), protocol})
	if want == nil {
		want = f.claims.applied(frontend{port: dialed.Port(), protocol: protocol})
	}
	if !want.isSticky() {
		return
	}
	local, known := f.program.isLocalClient(client)
	for _, list := range endpointLists {
		mayUse := want.kind != kindLocal || !known || local == (list == listCluster)
		if mayUse && hasEndpoint(want.endpoints(list), endpoint) {
			m := f.affinityMap(want.port, list)
			do(m, m.Element(client, endpoint))
		}
	}
}

// Protocols returns the protocols of Service ports with affinity in a family.
func (a Affinity) Protocols(family model.Family) (found []model.Protocol) {
	u := a.families.get(family).program.uses
	for i, protocol := range protocols {
		if u.sticky[0][i] || u.sticky[1][i] {
			found = append(found, protocol)
		}
	}
	return found
}

func hasEndpoint(list []model.Endpoint, addr netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(list, addr, func(e model.Endpoint, addr netip.AddrPort) int { return e.AddrPort.Compare(addr) })
	return found
}
