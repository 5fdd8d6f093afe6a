package compiler

import "github.com/nftproxy/nftproxy/nft"

// affinitySet returns the map of a port's clients for one list.
func (f *family) affinitySet(name string) *nft.Set {
	return &nft.Set{
		Name: name, Key: nft.Concat{f.family.Saddr()}, Data: nft.Concat{f.family.Daddr(), nft.ThDport}, Dynamic: true, Size: f.affinity.size,
	}
}

// affinityKnown builds the chain that sends known clients of a plan's frontends to their endpoint. Known clients are
// those in the map. Like the endpoint chain of the plan's kind, it marks those that are to be masqueraded. All other
// clients return from it, and continue as without affinity.
func (f *family) affinityKnown(p *affinityPort, want *plan) *nft.Chain {
	c := &nft.Chain{Name: affinityKnownName(p, want.kind)}
	switch want.kind {
	case kindCluster, kindExternal:
		c.Rules = append(f.masquerading(want.kind), f.returning(p, want.list)...)
	case kindLocal:
		for _, client := range f.localClients() {
			c.Rules = append(append(c.Rules, f.returning(p, listCluster, client)...), nft.NewRule(client, nft.Return))
		}
		node := isLocalAddress(nft.FibSaddrType)
		mark := nft.SetMark{Or: f.config.markBits()}
		c.Rules = append(append(c.Rules, f.returning(p, listCluster, node, mark)...), nft.NewRule(node, nft.Return))
		c.Rules = append(c.Rules, f.returning(p, listLocal)...)
	}
	return c
}

// returning returns the rule that sends clients that match to their endpoint in the list's map, if there is one. The
// rule matches the protocol too, because nft cannot list a translation to a port otherwise.
func (f *family) returning(p *affinityPort, list endpointList, match ...nft.Statement) []nft.Rule {
	if !p.has(list) {
		return nil
	}
	dnat := nft.DNAT{Family: f.family, Key: nft.Concat{f.family.Saddr()}, Map: p.mapName(list)}
	return []nft.Rule{nft.NewRule(append(match, isProtocol(p.id.Protocol), dnat)...)}
}

// affinityUpdate builds the chain that adds a client and its endpoint to the map. A client that is in the map keeps its
// endpoint, and its timeout starts anew.
func (f *family) affinityUpdate(p *affinityPort, list endpointList) *nft.Chain {
	return &nft.Chain{Name: affinityChainPrefixes[list] + p.name, Rules: []nft.Rule{nft.NewRule(
		isProtocol(p.id.Protocol),
		nft.Update{
			Map:     p.mapName(list),
			Key:     nft.Concat{f.family.Saddr()},
			Data:    nft.Concat{f.family.Daddr(), nft.CTReplyProtoSrc},
			Timeout: p.timeout,
		})}}
}

// affinityShortCircuit builds the chain for policy Local. Clients of the cluster and of the node were sent to an
// endpoint of the Cluster list, all others to one of the Local list.
func (f *family) affinityShortCircuit(p *affinityPort) *nft.Chain {
	c := &nft.Chain{Name: affinityShortCircuitPrefix + p.name}
	if p.has(listCluster) {
		update := nft.Goto(affinityChainPrefixes[listCluster] + p.name)
		for _, match := range append(f.localClients(), isLocalAddress(nft.FibSaddrType)) {
			c.Rules = append(c.Rules, nft.NewRule(match, update))
		}
	}
	if p.has(listLocal) {
		c.Rules = append(c.Rules, nft.NewRule(nft.Goto(affinityChainPrefixes[listLocal]+p.name)))
	}
	return c
}
