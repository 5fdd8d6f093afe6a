package compiler

import (
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// afterTranslation returns the verdict for the first packet of a connection whose destination was translated.
func (f *family) afterTranslation() nft.Verdict {
	if len(f.affinity.frontends) > 0 {
		return nft.Goto(chainAffinityCheck)
	}
	return nft.Accept
}

func (f *family) putAffinityCheck() {
	f.putChainIf(len(f.affinity.frontends) > 0, &nft.Chain{Name: chainAffinityCheck, Rules: f.affinityRules()})
}

// affinityRules run after the destination was translated. They read the dialed frontend from conntrack's original
// tuple, and go to the chain that adds its client to the map. Each protocol has rules of its own (dialedKey).
func (f *family) affinityRules() []nft.Rule {
	var rules []nft.Rule
	for _, nodePort := range []bool{false, true} {
		for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
			// The exceptions to node ports are found by address.
			if f.affinity.frontends[affinityRule{protocol, true}] > 0 || !nodePort && f.affinity.frontends[affinityRule{protocol, false}] > 0 {
				rules = append(rules, f.affinityRulesOf(protocol, nodePort)...)
			}
		}
	}
	return rules
}

// affinityRulesOf looks for frontends of one kind. The map knows a node port by its number alone, and other programs
// translate destinations too. So the dialed address has to be one on which node ports answer. Where these are whole
// networks, it must at least be no ClusterIP. External addresses may have a node port's number as well: see
// putAffinityExceptions.
func (f *family) affinityRulesOf(protocol model.Protocol, nodePort bool) (rules []nft.Rule) {
	daddr, isOf := f.family.OriginalDaddr(), isProtocol(protocol)
	find := nft.Vmap{Key: f.dialedKey(nodePort), Map: f.sets.of(nodePort).affinity.Name}
	if !nodePort {
		return []nft.Rule{nft.NewRule(isOf, find)}
	}
	networks := false
	for _, p := range f.nodePortPrefixes() {
		if p.IsSingleIP() {
			rules = append(rules, nft.NewRule(isOf, nft.Match{Field: daddr, Value: nft.AddrData(p.Addr())}, find))
		}
		networks = networks || !p.IsSingleIP()
	}
	if networks {
		rules = append(rules, nft.NewRule(isOf, nft.InSet{Key: nft.Concat{daddr}, Op: nft.NotEqual, Set: f.sets.clusterIPs.Name}, find))
	}
	return rules
}

// findKnown returns the rule that leads clients of frontends with affinity to the chains for known clients, if there
// are such frontends.
func (f *family) findKnown(nodePort bool) []nft.Rule {
	known := f.sets.of(nodePort).known
	if known.Len() == 0 {
		return nil
	}
	return []nft.Rule{nft.NewRule(nft.Vmap{Key: f.key(nodePort), Map: known.Name})}
}

// affinityRule identifies a rule of affinityRules.
type affinityRule struct {
	protocol model.Protocol
	nodePort bool
}

func isProtocol(protocol model.Protocol) nft.Statement {
	return nft.Match{Field: nft.MetaL4proto, Value: nft.ProtoData(uint8(protocol))}
}

// putAffinityExceptions keeps external addresses without affinity apart from a node port that has affinity and the same
// number. Such addresses get an element that ends the search.
func (f *family) putAffinityExceptions(fe frontend, want *plan) {
	if fe.isNodePort() {
		for external := range f.affinity.externals[fe] {
			f.putAffinityException(external, fe)
		}
		return
	}
	nodePort := frontend{port: fe.port, protocol: fe.protocol}
	externals := f.affinity.externals[nodePort]
	if want.kind.isExternal() && want.affinity == nil {
		if externals == nil {
			externals = map[frontend]bool{}
			f.affinity.externals[nodePort] = externals
		}
		externals[fe] = true
		f.putAffinityException(fe, nodePort)
	} else if delete(externals, fe); len(externals) == 0 {
		delete(f.affinity.externals, nodePort)
	}
}

func (f *family) putAffinityException(external, nodePort frontend) {
	accept := nft.Element{Key: external.key(), Verdict: nft.Accept, Comment: f.applied(external).comment}
	f.putElementIf(f.applied(nodePort).affinity != nil, f.sets.addresses.affinity, accept)
}
