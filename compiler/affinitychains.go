package compiler

import "github.com/nftproxy/nftproxy/nft"

// affinitySeed is the seed of the hash. It is the same on all nodes and in all versions, so that all choose alike.
const affinitySeed = 0x5eed

// affinityMap returns the map of a port's clients for one list.
func (p *program) affinityMap(key affinityKey, size uint32) *nft.Set {
	return &nft.Set{
		Name: key.mapName(),
		Key:  nft.Concat{p.family.Saddr()}, Data: nft.Concat{p.family.Daddr(), nft.ThDport}, Dynamic: true, Size: size,
	}
}

// affinityKnown builds the chain that sends known clients of a plan's frontends to their endpoint. Known clients are
// those in the map. Like the endpoint chain of the plan's kind, it marks those that are to be masqueraded. All other
// clients return from it, and continue as without affinity.
func (p *program) affinityKnown(want *plan) *nft.Chain {
	c := &nft.Chain{Name: affinityKnownName(want.kind, want.affinity.name)}
	if want.kind != kindLocal {
		c.Rules = append(p.masquerading(want.kind), p.returning(want, want.list)...)
		return c
	}
	for _, client := range p.localClients() {
		c.Rules = append(append(c.Rules, p.returning(want, listCluster, client)...), nft.NewRule(client, nft.Return))
	}
	node := isLocalAddress(nft.FibSaddrType)
	mark := nft.SetMark{Or: p.config.markBits()}
	c.Rules = append(append(c.Rules, p.returning(want, listCluster, node, mark)...), nft.NewRule(node, nft.Return))
	c.Rules = append(c.Rules, p.returning(want, listLocal)...)
	return c
}

// returning returns the rule that sends clients that match to their endpoint in the list's map, if there is one. The
// rule matches the protocol too, because nft cannot list a translation to a port otherwise.
func (p *program) returning(want *plan, list endpointList, match ...nft.Statement) []nft.Rule {
	if len(want.listOf(list)) == 0 {
		return nil
	}
	dnat := nft.DNAT{Family: p.family, Key: nft.Concat{p.family.Saddr()}, Map: affinityKey{want.affinity.name, list}.mapName()}
	return []nft.Rule{nft.NewRule(append(match, isProtocol(want.affinity.id.Protocol), dnat)...)}
}

// affinityUpdate builds the chain that adds a client and its endpoint to the map. A client that is in the map keeps its
// endpoint, and its timeout starts anew.
func (p *program) affinityUpdate(port *planAffinity, list endpointList) *nft.Chain {
	key := affinityKey{port.name, list}
	return &nft.Chain{Name: key.updateName(), Rules: []nft.Rule{nft.NewRule(
		isProtocol(port.id.Protocol),
		nft.Update{
			Map:     key.mapName(),
			Key:     nft.Concat{p.family.Saddr()},
			Data:    nft.Concat{p.family.Daddr(), nft.CTReplyProtoSrc},
			Timeout: port.timeout,
		})}}
}

// affinityShortCircuit builds the chain for policy Local. Clients of the cluster and of the node were sent to an
// endpoint of the Cluster list, all others to one of the Local list.
func (p *program) affinityShortCircuit(want *plan) *nft.Chain {
	port := want.affinity.name
	c := &nft.Chain{Name: affinityShortCircuitPrefix + port}
	if len(want.listOf(listCluster)) > 0 {
		update := nft.Goto(affinityKey{port, listCluster}.updateName())
		for _, match := range append(p.localClients(), isLocalAddress(nft.FibSaddrType)) {
			c.Rules = append(c.Rules, nft.NewRule(match, update))
		}
	}
	if len(want.listOf(listLocal)) > 0 {
		c.Rules = append(c.Rules, nft.NewRule(nft.Goto(affinityKey{port, listLocal}.updateName())))
	}
	return c
}

// affinityRules run after the destination was translated. They read the dialed frontend from conntrack's original
// tuple, and go to the chain that adds its client to the map. Each protocol has rules of its own (dialedKey).
func (p *program) affinityRules(u *uses) []nft.Rule {
	var rules []nft.Rule
	for _, nodePort := range []bool{false, true} {
		for i, protocol := range protocols {
			// The exceptions to node ports are found by address.
			if u.affinity[1][i] || !nodePort && u.affinity[0][i] {
				find := nft.Vmap{Key: p.dialedKey(nodePort), Map: affinityRecord.set(nodePort)}
				rules = append(rules, p.affinityRulesOf(isProtocol(protocol), nodePort, find)...)
			}
		}
	}
	return rules
}

// affinityRulesOf looks for frontends of one kind. The map knows a node port by its number alone, and other programs
// translate destinations too. So the dialed address has to be one on which node ports answer. Where these are whole
// networks, it must at least be no ClusterIP. External addresses may have a node port's number as well: see
// store.putAffinity.
func (p *program) affinityRulesOf(isOf nft.Statement, nodePort bool, find nft.Vmap) (rules []nft.Rule) {
	daddr := p.family.OriginalDaddr()
	if !nodePort {
		return []nft.Rule{nft.NewRule(isOf, find)}
	}
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
