package compiler

import "github.com/nftproxy/nftproxy/nft"

// affinitySeed is the seed of the hash. It is the same on all nodes and in all versions, so that all choose alike.
const affinitySeed = 0x5eed

func (p *program) affinityMap(key mapKey, size uint32) *nft.Set {
	return &nft.Set{
		Name: key.mapName(),
		Key:  nft.Concat{p.family.Saddr()}, Data: nft.Concat{p.family.Daddr(), nft.ThDport}, Dynamic: true, Size: size,
	}
}

// affinityChains builds the chains of a Service port with affinity, by its maps and the plans for its frontends. Plans
// of one kind share their chains, so a chain may come several times.
func (p *program) affinityChains(port *portPlans) (chains []*nft.Chain) {
	if !port.isSticky() {
		return nil
	}
	for _, list := range endpointLists {
		if port.recordsIn(list) {
			chains = append(chains, p.affinityUpdate(port, list))
		}
	}
	for r := range port.plans {
		plan := &port.plans[r]
		if plan.isSticky() {
			chains = append(chains, p.affinityKnown(plan))
		}
		if plan.kind == kindLocal {
			chains = append(chains, p.affinityShortCircuit(port))
		}
	}
	return chains
}

// affinityKnown builds the chain that sends known clients (the clients in the map) to their endpoint: for a port's frontends
// with a plan. It marks clients for masquerading as the endpoint chain of the plan does.
func (p *program) affinityKnown(plan *plan) *nft.Chain {
	port := plan.port
	c := &nft.Chain{Name: affinityKnownName(plan.kind, port.affinityName)}
	// returning adds the rule that sends clients that match to their endpoint in the list's map, if there is one. The rule
	// matches the protocol too, because nft cannot list a translation to a port otherwise.
	returning := func(list endpointList, match ...nft.Statement) {
		if len(port.list(list)) > 0 {
			dnat := nft.DNAT(p.family, nft.Concat{p.family.Saddr()}, mapKey{port.affinityName, list}.mapName())
			c.Rules = append(c.Rules, nft.NewRule(append(match, isProtocol(port.ID.Protocol), dnat)...))
		}
	}
	if plan.kind != kindLocal {
		c.Rules = p.masquerading(plan.kind)
		returning(plan.list)
		return c
	}
	for _, client := range p.localClients() {
		returning(listCluster, client)
		c.Rules = append(c.Rules, nft.NewRule(client, nft.Return))
	}
	node := isLocalAddress(nft.FibSaddrType)
	returning(listCluster, node, p.mark())
	c.Rules = append(c.Rules, nft.NewRule(node, nft.Return))
	returning(listLocal)
	return c
}

// affinityUpdate builds the chain that adds a client and its endpoint to the map, or starts its timeout anew.
func (p *program) affinityUpdate(port *portPlans, list endpointList) *nft.Chain {
	key := mapKey{port.affinityName, list}
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
	c := &nft.Chain{Name: affinityShortCircuitPrefix + port.affinityName}
	if len(port.Cluster) > 0 {
		update := nft.Goto(mapKey{port.affinityName, listCluster}.updateName())
		for _, match := range append(p.localClients(), isLocalAddress(nft.FibSaddrType)) {
			c.Rules = append(c.Rules, nft.NewRule(match, update))
		}
	}
	if len(port.Local) > 0 {
		c.Rules = append(c.Rules, nft.NewRule(nft.Goto(mapKey{port.affinityName, listLocal}.updateName())))
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
			if p.uses.sticky[1][i] || !nodePort && p.uses.sticky[0][i] {
				find := nft.Vmap{Key: p.dialedKey(nodePort), Map: recorderElement.setName(nodePort)}
				rules = append(rules, p.affinityRulesOf(isProtocol(protocol), nodePort, find)...)
			}
		}
	}
	return rules
}

// affinityRulesOf looks for frontends of one kind. The map identifies a node port by its number alone. So the rules also
// check that node ports answer on the dialed address, or, if they answer on networks, that the address is no ClusterIP. See
// also family.putExceptions.
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
