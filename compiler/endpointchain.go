package compiler

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// chainKind says what an endpoint chain does before it chooses an endpoint.
type chainKind uint8

const (
	kindNone chainKind = iota
	// kindCluster serves ClusterIPs: clients from outside the cluster are masqueraded.
	kindCluster
	// kindExternal serves external traffic with policy Cluster: always masqueraded.
	kindExternal
	// kindLocal serves external traffic with policy Local: only clients of the cluster and the node go to other nodes.
	kindLocal
	// kindAllEndpoints serves clients of the cluster and the node under policy Local, which does not bind them: it chooses
	// one of all endpoints, and does nothing else.
	kindAllEndpoints
)

var chainKindNames = [...]string{
	kindNone: "", kindCluster: "cluster", kindExternal: "external",
	kindLocal: "local", kindAllEndpoints: "all-endpoints",
}

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

// parseEndpointChain is the inverse of endpointChain.name.
func parseEndpointChain(name string) (c endpointChain, ok bool) {
	name, c.nodePort = strings.CutPrefix(name, "nodeport-")
	at := strings.LastIndexByte(name, '-')
	if at < 0 {
		return c, false
	}
	count, err := strconv.Atoi(name[at+1:])
	if err != nil || count < 0 {
		return c, false
	}
	c.count, name = count, name[:at]
	name, c.hash = strings.CutSuffix(name, "-hash")
	c.kind = parseChainKind(name)
	return c, c.kind != kindNone
}

func (p *program) endpointChain(c endpointChain) *nft.Chain {
	chain := &nft.Chain{Name: c.name()}
	switch c.kind {
	case kindCluster, kindExternal:
		chain.Rules = p.masquerading(c.kind)
	case kindLocal:
		shortCircuit := chainShortCircuit
		if c.nodePort {
			shortCircuit = chainShortCircuitNodePorts
		}
		chain.Rules = []nft.Rule{nft.NewRule(nft.Jump(shortCircuit))}
	}
	chain.Rules = append(chain.Rules, p.draws(c)...)
	return chain
}

// draws selects a slot at random and translates to its endpoint. A packet that runs while a commit takes effect can select
// a slot that the commit removed. The lookup then fails and ends the rule, and a second rule takes slot 0.
func (p *program) draws(c endpointChain) []nft.Rule {
	draw := func(slot nft.Expr) nft.Rule {
		return nft.NewRule(nft.DNAT(p.family, append(p.key(c.nodePort), slot), c.endpoints().setName(c.nodePort)))
	}
	first := draw(nft.Numgen{Mod: 1})
	switch c.count {
	case 0:
		return nil
	case 1:
		return []nft.Rule{first}
	}
	if c.hash {
		return []nft.Rule{draw(nft.JHash{Field: p.family.Saddr(), Mod: uint32(c.count), Seed: affinitySeed}), first}
	}
	return []nft.Rule{draw(nft.Numgen{Mod: uint32(c.count)}), first}
}

func (c endpointChain) endpoints() elementKind {
	if c.kind == kindLocal {
		return localEndpointElement
	}
	return endpointElement
}

func (c endpointChain) setName() string { return ServiceIPs + "-" + c.name() }

// mayHaveSet reports whether the chain may have a set: only chains of ClusterIPs may, which nearly all Services have.
func (c endpointChain) mayHaveSet() bool {
	return c.kind == kindCluster && !c.nodePort && c.count > 0
}

// group identifies the chains that differ in nothing but the number of endpoints.
func (c endpointChain) group() endpointChain {
	c.count = 0
	return c
}
