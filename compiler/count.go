package compiler

import (
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// Counting (Config.CountServices) has sets of its own. The elements of service-ips could count as well, but whenever
// the number of a Service's endpoints changes they are replaced, and their counts are lost. An element of the sets here
// exists as long as its frontend.
//
// Connections are counted in NAT chains of source translation. The kernel runs one of them once for each connection,
// after its destination was translated, unless another rule dropped it. So retransmitted SYNs and refused connections
// do not count. Packets and bytes are counted in filter chains, which see each packet, in both directions.

const (
	chainCountConnections = "count-connections"
	chainCountTraffic     = "count-traffic"
	// chainCountInput sees connections to processes of this node, which do not run through nat-postrouting.
	chainCountInput = "nat-input"
)

// The sets that count.
const (
	setConnections         = "service-connections"
	setNodePortConnections = "nodeport-connections"
	setTraffic             = "service-traffic"
	setNodePortTraffic     = "nodeport-traffic"
)

// CountSets returns the names of the sets whose elements count for a frontend. In the first one, each counted packet is
// a new connection that was sent to an endpoint. The second one counts all packets of such connections, in both
// directions. The keys are Frontend.Key. Only tables with Config.CountServices have these sets.
func (f *Frontend) CountSets() (connections, traffic string) {
	if f.Kind == FrontendNodePort {
		return setNodePortConnections, setNodePortTraffic
	}
	return setConnections, setTraffic
}

// CountsConnections reports whether each packet that the set of CountSets counts is a new connection.
func CountsConnections(set string) bool {
	return set == setConnections || set == setNodePortConnections
}

// putCounted puts the elements that count for a frontend, and removes them with its last claim.
func (f *family) putCounted(e frontendElements) {
	if !f.config.CountServices {
		return
	}
	sets := f.sets.of(e.frontend.isNodePort())
	for _, set := range []*nft.Set{sets.connections, sets.traffic} {
		f.putElementIf(e.want != &noPlan, set, nft.Element{Key: e.key, Comment: e.want.comment})
	}
}

// putCountChains puts the chains that count, and the base chain that only counting needs.
func (f *family) putCountChains() {
	if !f.config.CountServices {
		return
	}
	a, n := &f.sets.addresses, &f.sets.nodePorts
	f.draft.PutChain(&nft.Chain{Name: chainCountInput, Type: nft.TypeNAT, Hook: nft.HookInput, Priority: nft.PrioritySrcNAT, Rules: f.countConnections()})
	f.draft.PutChain(&nft.Chain{Name: chainCountConnections, Rules: f.countRules(a.connections, n.connections)})
	f.draft.PutChain(&nft.Chain{Name: chainCountTraffic, Rules: f.countRules(a.traffic, n.traffic)})
}

// countRules look up the address that the client dialed, from conntrack. External addresses may have a node port's
// number, so they are looked up first. Each protocol has rules of its own (dialedKey).
func (f *family) countRules(addresses, nodePorts *nft.Set) (rules []nft.Rule) {
	for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		rules = append(rules,
			nft.NewRule(isProtocol(protocol), nft.InSet{Key: f.dialedKey(false), Set: addresses.Name}, nft.Return),
			nft.NewRule(isProtocol(protocol), nft.InSet{Key: f.dialedKey(true), Set: nodePorts.Name}, nft.Return))
	}
	return rules
}

// countConnections begins the NAT chains of source translation.
func (f *family) countConnections() []nft.Rule { return f.countIn(chainCountConnections) }

// countTraffic begins the filter chains.
func (f *family) countTraffic() []nft.Rule { return f.countIn(chainCountTraffic) }

// countInput begins the filter chain of hook input. Packets from this node itself were counted in hook output.
func (f *family) countInput() []nft.Rule {
	return f.countIn(chainCountTraffic, nft.Match{Field: nft.MetaIifname, Op: nft.NotEqual, Value: "lo"})
}

// countIn leads packets of connections whose destination was translated to a chain that counts.
func (f *family) countIn(chain string, match ...nft.Statement) []nft.Rule {
	if !f.config.CountServices {
		return nil
	}
	statements := append([]nft.Statement{nft.Match{Field: nft.CTStatus, Value: nft.CTStatusDNAT}}, match...)
	return []nft.Rule{nft.NewRule(append(statements, nft.Jump(chain))...)}
}
