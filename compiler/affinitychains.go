package compiler

import "github.com/nftproxy/nftproxy/nft"

// affinitySeed is the seed of the hash. It is the same on all nodes and in all versions, so that all choose alike.
const affinitySeed = 0x5eed

func (p *program) affinityMap(key affinityKey, size uint32) *nft.Set {
	return &nft.Set{
		Name: key.mapName(),
		Key:  nft.Concat{p.family.Saddr()}, Data: nft.Concat{p.family.Daddr(), nft.ThDport}, Dynamic: true, Size: size,
	}
}

// affinityKnown builds the chain that sends known clients, those in the map, to their endpoint: for a port's frontends
// whose plan is of a kind. Like the endpoint chain of the kind, it marks those that are to be masqueraded.
func (p *program) affinityKnown(port *portPlans, kind chainKind) *nft.Chain {
	c := &nft.Chain{Name: affinityKnownName(kind, port.affinity)}
	// returning adds the rule that sends clients that match to their endpoint in the list's map, if there is one. The rule
	// matches the protocol too, because nft cannot list a translation to a port otherwise.
	returning := func(list endpointList, match ...nft.Statement) {
		if len(port.list(list)) > 0 {
			dnat := nft.DNAT(p.family, nft.Concat{p.family.Saddr()}, affinityKey{port.affinity, list}.mapName())
			c.Rules = append(c.Rules, nft.NewRule(append(match, isProtocol(port.ID.Protocol), dnat)...))
		}
	}
	switch kind {
	case kindLocal:
		for _, client := range p.localClients() {
			returning(listCluster, client)
			c.Rules = append(c.Rules, nft.NewRule(client, nft.Return))
		}
		node := isLocalAddress(nft.FibSaddrType)
		returning(listCluster, node, p.mark())
		c.Rules = append(c.Rules, nft.NewRule(node, nft.Return))
		returning(listLocal)
	case kindCluster:
		c.Rules = p.masquerading(kind)
		returning(port.of(rankClusterIP).list)
	default:
		c.Rules = p.masquerading(kind)
		returning(listCluster)
	}
	return c
}

// affinityUpdate builds the chain that adds a client and its endpoint to the map, or starts its timeout anew.
func (p *program) affinityUpdate(port *portPlans, list endpointList) *nft.Chain {
	key := affinityKey{port.affinity, list}
	return &nft.Chain{Name: key.updateName(), Rules: []nft.Rule{nft.NewRule(
		isProtocol(port.ID.Protocol),
		nft.Update{
			Map:     key.mapName(),
			Key:     nft.Concat{p.family.Saddr()},
			Data:    nft.Concat{p.family.Daddr(), nft.CTReplyProtoSrc},
			Timeout: port.AffinityTimeout,
		})}}
}

// affinityShortCircuit builds the chain for policy Local. Clients of the cluster and of the node were sent to an
// endpoint of the Cluster list, all others to one of the Local list.
func (p *program) affinityShortCircuit(port *portPlans) *nft.Chain {
	c := &nft.Chain{Name: affinityShortCircuitPrefix + port.affinity}
	if len(port.Cluster) > 0 {
		update := nft.Goto(affinityKey{port.affinity, listCluster}.updateName())
		for _, match := range append(p.localClients(), isLocalAddress(nft.FibSaddrType)) {
			c.Rules = append(c.Rules, nft.NewRule(match, update))
		}
	}
	if len(port.Local) > 0 {
		c.Rules = append(c.Rules, nft.NewRule(nft.Goto(affinityKey{port.affinity, listLocal}.updateName())))
	}
	return c
}

// affinityRules run after the destination was translated. They find the dialed frontend in conntrack's original tuple,
// and go to the chain that adds its client to the map.
func (p *program) affinityRules() []nft.Rule {
	var rules []nft.Rule
	for _, nodePort := range []bool{false, true} {
		for i, protocol := range protocols {
			// The exceptions to node ports are found by address.
			if p.uses.affinity[1][i] || !nodePort && p.uses.affinity[0][i] {
				find := nft.Vmap{Key: p.dialedKey(nodePort), Map: affinityRecord.set(nodePort)}
				rules = append(rules, p.affinityRulesOf(isProtocol(protocol), nodePort, find)...)
			}
		}
	}
	return rules
}

// affinityRulesOf looks for frontends of one kind. The map knows a node port by its number alone. So the dialed address
// has to be one on which node ports answer, or, where these are networks, no ClusterIP. See also store.putAffinity.
func (p *program) affinityRulesOf(isOf nft.Statement, nodePort bool, find nft.Vmap) (rules []nft.Rule) {
	if !nodePort {
		return []nft.Rule{nft.NewRule(isOf, find)}
	}
	daddr := p.family.OriginalDaddr()
	networks := false
	for _, prefix := range p.nodePortPrefixes() {
		if prefix.IsSingleIP() {
			rules = append(rules, nft.NewRule(isOf, nft.Match{Field: daddr, Value: nft.AddrData(prefix.Addr())}, find))
		}
		networks = networks || !prefix.IsSingleIP()
	}
	if networks {
		rules = append(rules, nft.NewRule(isOf, nft.InSet{Key: nft.Concat{daddr}, Op: nft.NotEqual, Set: ClusterIPs}, find))
	}
	return rules
}
