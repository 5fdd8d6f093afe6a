package compiler

import "github.com/nftproxy/nftproxy/nft"

// guardSet is the name of the set of load balancer addresses that only some sources may dial.
const guardSet = "guarded-ips"

// hairpinSet is the name of the set of endpoints whose packets may be sent back to them.
const hairpinSet = "hairpin"

// sets holds the sets and maps that a table always has: all but affinity maps and sets of one chain. docs/ruleset.md
// explains each.
type sets struct {
	// addresses are for frontends with an address, nodePorts for those without.
	addresses, nodePorts       frontendSets
	clusterIPs, hairpin        *nft.Set
	guardedIPs, allowedSources *nft.Set
}

// frontendSets are the sets whose keys are, or begin with, frontends of one sort.
type frontendSets struct {
	// The verdicts on new connections. shortCircuits are for clients that policy Local does not bind.
	services, shortCircuits, noEndpoints *nft.Set
	endpoints, localEndpoints            *nft.Set
	// affinity leads to affinity-update chains, known to affinity-known chains.
	affinity, known *nft.Set
	// connections and traffic count; nil without Config.CountServices.
	connections, traffic *nft.Set
}

// of returns the sets for node ports, or for addresses.
func (s *sets) of(nodePort bool) *frontendSets {
	if nodePort {
		return &s.nodePorts
	}
	return &s.addresses
}

// endpointsOf returns the map of endpoints that the chain draws from.
func (s *sets) endpointsOf(c endpointChain) *nft.Set {
	of := s.of(c.nodePort)
	if c.kind == kindLocal {
		return of.localEndpoints
	}
	return of.endpoints
}

// addSets adds the sets to the draft, in the order in which the table has them.
func (f *family) addSets() {
	verdicts := func(name string, nodePort bool) *nft.Set {
		return f.draft.AddSet(&nft.Set{Name: name, Key: f.key(nodePort), Verdicts: true})
	}
	endpoints := func(name string, nodePort bool) *nft.Set {
		key := append(f.key(nodePort), nft.Numgen{Mod: 2})
		return f.draft.AddSet(&nft.Set{Name: name, Key: key, Data: nft.Concat{f.family.Daddr(), nft.ThDport}})
	}
	counters := func(name string, nodePort bool) *nft.Set {
		return f.draft.AddSet(&nft.Set{Name: name, Key: f.key(nodePort), Counter: true})
	}
	s := &f.sets
	a, n := &s.addresses, &s.nodePorts
	a.services, n.services = verdicts(ServiceIPs, false), verdicts("service-nodeports", true)
	a.endpoints, n.endpoints = endpoints(Endpoints, false), endpoints("nodeport-endpoints", true)
	a.shortCircuits, n.shortCircuits = verdicts("short-circuit-ips", false), verdicts("short-circuit-nodeports", true)
	a.localEndpoints, n.localEndpoints = endpoints("local-endpoints", false), endpoints("local-nodeport-endpoints", true)
	a.noEndpoints, n.noEndpoints = verdicts("no-endpoint-services", false), verdicts("no-endpoint-nodeports", true)
	s.clusterIPs = f.draft.AddSet(&nft.Set{Name: ClusterIPs, Key: nft.Concat{f.family.Daddr()}})
	s.guardedIPs = f.draft.AddSet(&nft.Set{Name: guardSet, Key: f.key(false)})
	s.allowedSources = f.draft.AddSet(&nft.Set{Name: "allowed-sources", Key: append(f.key(false), f.family.Saddr()), Interval: true})
	a.affinity, n.affinity = verdicts("affinity-ips", false), verdicts("affinity-nodeports", true)
	a.known, n.known = verdicts("affinity-known-ips", false), verdicts("affinity-known-nodeports", true)
	if f.config.CountServices {
		a.connections, n.connections = counters(setConnections, false), counters(setNodePortConnections, true)
		a.traffic, n.traffic = counters(setTraffic, false), counters(setNodePortTraffic, true)
	}
	s.hairpin = f.draft.AddSet(&nft.Set{Name: hairpinSet, Key: nft.Concat{f.family.Saddr(), f.family.Daddr()}})
}

// key returns the fields that identify a frontend in the maps.
func (f *family) key(nodePort bool) nft.Concat {
	if nodePort {
		return nft.Concat{nft.MetaL4proto, nft.ThDport}
	}
	return nft.Concat{f.family.Daddr(), nft.MetaL4proto, nft.ThDport}
}

// dialedKey returns the fields of key as the client dialed them, for packets whose destination was translated. nft can
// list a port of conntrack only in a rule that matches the protocol first.
func (f *family) dialedKey(nodePort bool) nft.Concat {
	if nodePort {
		return nft.Concat{nft.MetaL4proto, nft.CTOriginalProtoDst}
	}
	return nft.Concat{f.family.OriginalDaddr(), nft.MetaL4proto, nft.CTOriginalProtoDst}
}
