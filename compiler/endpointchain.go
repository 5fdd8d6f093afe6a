package compiler

import (
	"slices"
	"strconv"

	"github.com/nftproxy/nftproxy/nft"
)

// chainKind says what an endpoint chain does before it chooses an endpoint. The name of the chain is the kind and the
// number of endpoints, such as "cluster-3".
type chainKind uint8

const (
	kindNone chainKind = iota
	// kindCluster serves ClusterIPs: clients from outside the cluster are masqueraded.
	kindCluster
	// kindExternal serves external traffic with policy Cluster: always masqueraded.
	kindExternal
	// kindLocal serves external traffic with policy Local: the client's address is kept,
	// and only clients of the cluster and the node may go to other nodes.
	kindLocal
	// kindDirect only chooses an endpoint: for clients of the cluster and the node under policy Local.
	kindDirect
)

// chainKindNames are the names of all kinds, by kind.
var chainKindNames = [...]string{kindNone: "", kindCluster: "cluster", kindExternal: "external", kindLocal: "local", kindDirect: "direct"}

func (k chainKind) String() string { return chainKindNames[k] }

// isExternal reports whether chains of the kind serve addresses other than ClusterIPs.
func (k chainKind) isExternal() bool { return k == kindExternal || k == kindLocal }

// parseChainKind is the inverse of String; kindNone for what is none.
func parseChainKind(name string) chainKind {
	return chainKind(max(slices.Index(chainKindNames[:], name), 0))
}

// endpointChain identifies a chain that ends in an endpoint. The zero value is none.
type endpointChain struct {
	kind     chainKind
	nodePort bool
	// hash makes the hash of a client's address choose, instead of a random number.
	hash  bool
	count int
}

// name returns the chain's name, such as "cluster-3", "nodeport-local-1" or "cluster-hash-2".
func (c endpointChain) name() string {
	name := c.kind.String()
	if c.nodePort {
		name = "nodeport-" + name
	}
	if c.hash {
		name += "-hash"
	}
	return name + "-" + strconv.Itoa(c.count)
}

// endpointChain builds the chain: the rules of its kind, then the choice of an endpoint.
func (f *family) endpointChain(c endpointChain) *nft.Chain {
	chain := &nft.Chain{Name: c.name()}
	switch c.kind {
	case kindCluster, kindExternal:
		chain.Rules = f.masquerading(c.kind)
	case kindLocal:
		shortCircuit := chainShortCircuit
		if c.nodePort {
			shortCircuit = chainShortCircuitNodePorts
		}
		chain.Rules = []nft.Rule{nft.NewRule(nft.Jump(shortCircuit))}
	}
	chain.Rules = append(chain.Rules, f.draws(c)...)
	return chain
}

// draws chooses a slot and translates to the endpoint in it. A packet that runs while a commit takes effect can draw a
// slot that has just gone. The lookup then ends the rule, and a second rule takes slot 0.
func (f *family) draws(c endpointChain) []nft.Rule {
	endpoints := f.sets.endpointsOf(c)
	draw := func(slot nft.Expr) nft.Rule {
		return nft.NewRule(nft.DNAT{Family: f.family, Key: append(f.key(c.nodePort), slot), Map: endpoints.Name})
	}
	first := draw(nft.Numgen{Mod: 1})
	switch c.count {
	case 0:
		return nil
	case 1:
		return []nft.Rule{first}
	}
	return []nft.Rule{draw(f.slot(c)), first}
}

// slot chooses one of the chain's endpoints.
func (f *family) slot(c endpointChain) nft.Expr {
	if c.hash {
		return nft.JHash{Field: f.family.Saddr(), Mod: uint32(c.count), Seed: affinitySeed}
	}
	return nft.Numgen{Mod: uint32(c.count)}
}
