package compiler

import "github.com/nftproxy/nftproxy/nft"

// affinitySet returns the map of a port's clients for one list.
func (f *family) affinitySet(name string) *nft.Set {
	return &nft.Set{
		Name: name, Key: nft.Concat{f.family.Saddr()}, Data: nft.Concat{f.family.Daddr(), nft.ThDport}, Dynamic: true, Size: affinitySize,
	}
}

// returning sends a client that is in the map to its endpoint. The rule matches the protocol first, because nft cannot
// list a translation to a port otherwise.
func (f *family) returning(c endpointChain) nft.Rule {
	return nft.NewRule(isProtocol(c.affinity.protocol), nft.DNAT{Family: f.family, Key: nft.Concat{f.family.Saddr()}, Map: affinityMapPrefixes[c.affinity.list] + c.affinity.port})
}

// affinityUpdate builds the chain that adds a client and its endpoint to the map. A client that is in the map keeps its
// endpoint, and its timeout starts anew.
func (f *family) affinityUpdate(p *affinityPort, list endpointList) *nft.Chain {
	return &nft.Chain{Name: affinityChainPrefixes[list] + p.name, Rules: []nft.Rule{nft.NewRule(
		isProtocol(uint8(p.id.Protocol)),
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
