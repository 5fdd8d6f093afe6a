package compiler

import (
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// Chains with fixed names.
const (
	chainServices              = "services"
	chainNodePorts             = "nodeports"
	chainMarkUnlessLocal       = "mark-unless-local"
	chainShortCircuit          = "short-circuit"
	chainShortCircuitNodePorts = "short-circuit-nodeports"
	chainInputCheck            = "input-check"
	chainForwardCheck          = "forward-check"
	chainNoEndpoints           = "no-endpoints-check"
	chainNoEndpointNodePorts   = "no-endpoint-nodeports-check"
	chainClusterIPs            = "cluster-ips-check"
	chainFirewall              = "firewall-check"
	chainReject                = "reject-chain"
)

// putFixedChains puts the chains with fixed names. The transaction does not contain those that are the same as before.
func (f *family) putFixedChains() {
	// For each base chain, the kernel decides anew which generation of rules a packet sees; for each lookup, which
	// generation of elements. A packet that sees the rules from before a commit can find a new element that leads to a
	// new chain, which has no rules in its generation. So NAT base chains of prerouting and output come in pairs: the
	// second one sees the rules of the commit. It does not run for packets that the first one translated.
	services := []nft.Rule{nft.NewRule(nft.Jump(chainServices))}
	for _, c := range []*nft.Chain{
		{Name: "nat-prerouting", Type: nft.TypeNAT, Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT, Rules: services},
		{Name: "nat-output", Type: nft.TypeNAT, Hook: nft.HookOutput, Priority: nft.PriorityDstNAT, Rules: services},
		{Name: "nat-prerouting-again", Type: nft.TypeNAT, Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT + 1, Rules: services},
		{Name: "nat-output-again", Type: nft.TypeNAT, Hook: nft.HookOutput, Priority: nft.PriorityDstNAT + 1, Rules: services},
		{Name: "filter-input", Type: nft.TypeFilter, Hook: nft.HookInput, Priority: f.filterPriority(), Rules: append(f.countInput(), newConnections(chainInputCheck)...)},
		{Name: "filter-forward", Type: nft.TypeFilter, Hook: nft.HookForward, Priority: f.filterPriority(), Rules: append(f.countTraffic(), newConnections(chainForwardCheck)...)},
		{Name: "filter-output", Type: nft.TypeFilter, Hook: nft.HookOutput, Priority: f.filterPriority(), Rules: append(f.countTraffic(), newConnections(chainForwardCheck)...)},
		{Name: "nat-postrouting", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: nft.PrioritySrcNAT, Rules: f.postrouting()},
		{Name: chainNodePorts, Rules: append(f.findKnown(true), nft.NewRule(nft.Vmap{Key: f.key(true), Map: f.sets.nodePorts.services.Name}))},
		{Name: chainShortCircuit, Rules: f.shortCircuitRules(false)},
		{Name: chainShortCircuitNodePorts, Rules: f.shortCircuitRules(true)},
		{Name: chainInputCheck, Rules: f.checks(f.inUse(chainNoEndpoints, chainNoEndpointNodePorts)...)},
		{Name: chainForwardCheck, Rules: f.checks(f.inUse(chainNoEndpoints, chainClusterIPs)...)},
		{Name: chainClusterIPs, Rules: f.clusterIPRules()},
		{Name: chainReject, Rules: []nft.Rule{nft.NewRule(nft.Reject{Family: f.family})}},
	} {
		f.draft.PutChain(c)
	}
	f.putNoEndpointChecks()
	f.putServices()
	f.putCountChains()
	f.putMarkUnlessLocal()
	f.putAffinityCheck()
	f.putFirewall()
}

// filterPriority is that of the chains that refuse or drop packets to frontends without endpoints.
func (f *family) filterPriority() int32 {
	if f.config.ServiceProxyName != "" {
		return nft.PriorityFilter - 1
	}
	return nft.PriorityFilter
}

// newConnections calls a chain for the first packet of each connection. All other packets cost one comparison.
func newConnections(chain string) []nft.Rule {
	return []nft.Rule{nft.NewRule(nft.Match{Field: nft.CTState, Value: nft.CTStateNew}, nft.Jump(chain))}
}

// checks calls chains for packets whose destination was not translated. Translated packets skip them: an endpoint's
// address may itself be a frontend without endpoints.
func (f *family) checks(chains ...string) []nft.Rule {
	rules := []nft.Rule{nft.NewRule(nft.Match{Field: nft.CTStatus, Value: nft.CTStatusDNAT}, f.afterTranslation())}
	for _, chain := range chains {
		rules = append(rules, nft.NewRule(nft.Jump(chain)))
	}
	return rules
}

// putServices puts the chain that finds the frontend of a packet.
func (f *family) putServices() {
	rules := append(f.findKnown(false), f.chainSetRules()...)
	rules = append(rules, nft.NewRule(nft.Vmap{Key: f.key(false), Map: f.sets.addresses.services.Name}))
	f.draft.PutChain(&nft.Chain{Name: chainServices, Rules: append(rules, f.onNodePortAddresses(f.uses.nodePorts, nft.Goto(chainNodePorts))...)})
}

func (f *family) clusterIPRules() []nft.Rule {
	daddr := f.family.Daddr()
	rules := []nft.Rule{{
		Statements: []nft.Statement{nft.InSet{Key: nft.Concat{daddr}, Set: f.sets.clusterIPs.Name}, nft.Reject{Family: f.family}},
		Comment:    "a port that the ClusterIP does not have",
	}}
	if f.config.ServiceProxyName != "" {
		return rules // other proxies have Services in these ranges
	}
	for _, p := range prefixesOf(f.family, f.serviceCIDRs) {
		rules = append(rules, nft.Rule{
			Statements: []nft.Statement{nft.Match{Field: daddr, Value: p}, nft.Drop},
			Comment:    "an address that no Service holds",
		})
	}
	return rules
}

func (f *family) postrouting() []nft.Rule {
	bits := f.config.markBits()
	rules := append(f.countConnections(), nft.NewRule(nft.Match{Field: nft.MetaMark, Mask: bits, Value: bits}, nft.SetMark{Xor: bits}, nft.Masquerade{}))
	if f.uses.hairpin {
		pair := nft.Concat{f.family.Saddr(), f.family.Daddr()}
		rules = append(rules, nft.Rule{
			Statements: []nft.Statement{nft.Match{Field: nft.CTStatus, Value: nft.CTStatusDNAT}, nft.InSet{Key: pair, Set: f.sets.hairpin.Name}, nft.Masquerade{}},
			Comment:    "the endpoint is the client itself",
		})
	}
	return rules
}

func isLocalAddress(field nft.Field) nft.Statement {
	return nft.Match{Field: field, Op: nft.Equal, Value: nft.IntegerData(unix.RTN_LOCAL)}
}
