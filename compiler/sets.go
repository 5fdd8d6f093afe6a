package compiler

import "github.com/nftproxy/nftproxy/nft"

// guardSet is the name of the set of load balancer addresses that only some sources may dial.
const guardSet = "guarded-ips"

// hairpinSet is the name of the set of endpoints whose packets may be sent back to them.
const hairpinSet = "hairpin"

// sets holds the sets and maps that a table always has: all but affinity maps and sets of one chain. docs/ruleset.md
// explains each.
type sets struct {
	serviceIPs, serviceNodePorts            *nft.Set
	endpoints, nodePortEndpoints            *nft.Set
	localEndpoints, localNodePortEndpoints  *nft.Set
	shortCircuitIPs, shortCircuitNodePorts  *nft.Set
	noEndpointServices, noEndpointNodePorts *nft.Set
	clusterIPs, hairpin                     *nft.Set
	guardedIPs, allowedSources              *nft.Set
	affinityIPs, affinityNodePorts          *nft.Set
	knownIPs, knownNodePorts                *nft.Set
	// counts are the sets that count; zero without Config.CountServices.
	counts countSets
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
	s := &f.sets
	s.serviceIPs = verdicts("service-ips", false)
	s.serviceNodePorts = verdicts("service-nodeports", true)
	s.endpoints = endpoints("endpoints", false)
	s.nodePortEndpoints = endpoints("nodeport-endpoints", true)
	s.shortCircuitIPs = verdicts("short-circuit-ips", false)
	s.shortCircuitNodePorts = verdicts("short-circuit-nodeports", true)
	s.localEndpoints = endpoints("local-endpoints", false)
	s.localNodePortEndpoints = endpoints("local-nodeport-endpoints", true)
	s.noEndpointServices = verdicts("no-endpoint-services", false)
	s.noEndpointNodePorts = verdicts("no-endpoint-nodeports", true)
	s.clusterIPs = f.draft.AddSet(&nft.Set{Name: "cluster-ips", Key: nft.Concat{f.family.Daddr()}})
	s.guardedIPs = f.draft.AddSet(&nft.Set{Name: guardSet, Key: f.key(false)})
	s.allowedSources = f.draft.AddSet(&nft.Set{Name: "allowed-sources", Key: append(f.key(false), f.family.Saddr()), Interval: true})
	s.affinityIPs = verdicts("affinity-ips", false)
	s.affinityNodePorts = verdicts("affinity-nodeports", true)
	s.knownIPs = verdicts("affinity-known-ips", false)
	s.knownNodePorts = verdicts("affinity-known-nodeports", true)
	if f.config.CountServices {
		f.addCountSets()
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

// listsOf returns the maps that hold the endpoints of a frontend's plan.
func (s *sets) listsOf(fe frontend) (endpoints, local *nft.Set) {
	if fe.isNodePort() {
		return s.nodePortEndpoints, s.localNodePortEndpoints
	}
	return s.endpoints, s.localEndpoints
}

// verdictsOf returns the maps that hold the verdicts of a frontend.
func (s *sets) verdictsOf(fe frontend) (services, shortCircuits, unserved *nft.Set) {
	if fe.isNodePort() {
		return s.serviceNodePorts, s.shortCircuitNodePorts, s.noEndpointNodePorts
	}
	return s.serviceIPs, s.shortCircuitIPs, s.noEndpointServices
}

// affinityOf returns the map from frontends to affinity-update chains that has the frontend.
func (s *sets) affinityOf(fe frontend) *nft.Set {
	if fe.isNodePort() {
		return s.affinityNodePorts
	}
	return s.affinityIPs
}

// knownOf returns the map from frontends to affinity-known chains that has the frontend.
func (s *sets) knownOf(fe frontend) *nft.Set {
	if fe.isNodePort() {
		return s.knownNodePorts
	}
	return s.knownIPs
}

// endpointsOf returns the map that the chain's endpoints are in.
func (s *sets) endpointsOf(c endpointChain) *nft.Set {
	local := c.kind == kindLocal
	switch {
	case local && c.nodePort:
		return s.localNodePortEndpoints
	case local:
		return s.localEndpoints
	case c.nodePort:
		return s.nodePortEndpoints
	}
	return s.endpoints
}
