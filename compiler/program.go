package compiler

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
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
	chainAffinityCheck         = "affinity-check"
	chainCountConnections      = "count-connections"
	chainCountTraffic          = "count-traffic"
	// chainCountInput sees connections to processes of this node, which do not run through nat-postrouting.
	chainCountInput = "nat-input"
)

// program builds the chains of one IP family. They depend on its fields.
type program struct {
	family       nft.Family
	config       *Config
	node         model.Node
	serviceCIDRs []netip.Prefix
	uses         uses
	front        front
}

// uses says which sets have elements. Rules that only look up an empty set are left out, so that packets do not pay for
// what no Service needs.
type uses struct {
	has [elementKinds][2]bool
	// sticky says which frontends have affinity, by whether they are node ports and by the index in protocols.
	sticky [2][len(protocols)]bool
	// chainSets changes with the chains that have a set.
	chainSets int
	// servedOutside and checkedOutside say whether there are such frontends in no ServiceCIDR (outside), or no ServiceCIDRs.
	servedOutside, checkedOutside bool
}

var protocols = [...]model.Protocol{model.TCP, model.UDP, model.SCTP}

// chains returns the chains with fixed names that are needed. Chain sets are the chains that have a set.
func (p *program) chains(chainSets []endpointChain) []*nft.Chain {
	// The kernel decides for each base chain which generation of rules a packet sees; for each lookup, which generation of
	// elements. So a packet with old rules can find a new element that leads to a new chain, which has no rules for it.
	// A second NAT base chain in prerouting and output then sees the new rules, if the first one did not translate.
	services := p.toServices()
	nat := func(name string, hook nft.Hook, priority int32, rules []nft.Rule) *nft.Chain {
		return &nft.Chain{Name: name, Type: nft.TypeNAT, Hook: hook, Priority: priority, Rules: rules}
	}
	filter := func(name string, hook nft.Hook, priority int32, rules []nft.Rule) *nft.Chain {
		return &nft.Chain{Name: name, Type: nft.TypeFilter, Hook: hook, Priority: priority, Rules: rules}
	}
	priority := int32(nft.PriorityFilter)
	if p.config.ServiceProxyName != "" {
		priority--
	}
	input := nft.Match{Field: nft.MetaIifname, Op: nft.NotEqual, Value: "lo"} // others were counted in hook output
	chains := []*nft.Chain{
		nat("nat-prerouting", nft.HookPrerouting, nft.PriorityDstNAT, services),
		nat("nat-output", nft.HookOutput, nft.PriorityDstNAT, services),
		nat("nat-prerouting-again", nft.HookPrerouting, nft.PriorityDstNAT+1, services),
		nat("nat-output-again", nft.HookOutput, nft.PriorityDstNAT+1, services),
		filter("filter-input", nft.HookInput, priority, append(p.countIn(chainCountTraffic, input), newConnections(chainInputCheck)...)),
		filter("filter-forward", nft.HookForward, priority, append(p.countIn(chainCountTraffic), p.toForwardCheck()...)),
		filter("filter-output", nft.HookOutput, priority, append(p.countIn(chainCountTraffic), p.toForwardCheck()...)),
		nat("nat-postrouting", nft.HookPostrouting, nft.PrioritySrcNAT, p.postrouting()),
		{Name: chainServices, Rules: p.services(chainSets)},
		{Name: chainNodePorts, Rules: append(p.findKnown(true), p.find(serviceElement, true))},
		{Name: chainShortCircuit, Rules: p.shortCircuitRules(false)},
		{Name: chainShortCircuitNodePorts, Rules: p.shortCircuitRules(true)},
		{Name: chainInputCheck, Rules: p.checks(false)},
		{Name: chainForwardCheck, Rules: p.checks(true)},
		{Name: chainClusterIPs, Rules: p.clusterIPRules()},
		{Name: chainReject, Rules: []nft.Rule{nft.NewRule(nft.Reject{Family: p.family})}},
	}
	if p.has(noEndpointElement, false) {
		chains = append(chains, &nft.Chain{Name: chainNoEndpoints, Rules: []nft.Rule{p.find(noEndpointElement, false)}})
	}
	if p.has(noEndpointElement, true) {
		chains = append(chains, &nft.Chain{Name: chainNoEndpointNodePorts, Rules: p.onNodePortAddresses(true, p.lookup(noEndpointElement, true))})
	}
	if rules := p.markUnlessLocal(); rules != nil {
		chains = append(chains, &nft.Chain{Name: chainMarkUnlessLocal, Rules: rules})
	}
	if p.hasAffinity() {
		chains = append(chains, &nft.Chain{Name: chainAffinityCheck, Rules: p.affinityRules()})
	}
	var guard []nft.Rule
	if p.has(guardedElement, false) {
		guard = []nft.Rule{nft.NewRule(nft.Jump(chainFirewall))}
		chains = append(chains,
			filter("filter-prerouting-pre-dnat", nft.HookPrerouting, nft.PriorityDstNAT-10, newConnections(chainFirewall)),
			filter("filter-output-pre-dnat", nft.HookOutput, nft.PriorityDstNAT-10, newConnections(chainFirewall)),
			&nft.Chain{Name: chainFirewall, Rules: p.firewallRules()})
	}
	chains = append(chains, p.front.Chains(p.localClients(), guard)...)
	if p.config.CountServices {
		chains = append(chains,
			nat(chainCountInput, nft.HookInput, nft.PrioritySrcNAT, p.countIn(chainCountConnections)),
			&nft.Chain{Name: chainCountConnections, Rules: p.countRules(connectionsElement)},
			&nft.Chain{Name: chainCountTraffic, Rules: p.countRules(trafficElement)})
	}
	return chains
}

func (p *program) has(kind elementKind, nodePort bool) bool { return p.uses.has[kind][index(nodePort)] }

func (p *program) hasAffinity() bool { return p.has(knownElement, false) || p.has(knownElement, true) }

// key returns the fields that identify a frontend in the maps.
func (p *program) key(nodePort bool) nft.Concat {
	if nodePort {
		return nft.Concat{nft.MetaL4proto, nft.ThDport}
	}
	return nft.Concat{p.family.Daddr(), nft.MetaL4proto, nft.ThDport}
}

// dialedKey returns the fields of key as the client dialed them, for packets whose destination was translated. nft can
// list a port of conntrack only in a rule that matches the protocol first.
func (p *program) dialedKey(nodePort bool) nft.Concat {
	if nodePort {
		return nft.Concat{nft.MetaL4proto, nft.CTOriginalProtoDst}
	}
	return nft.Concat{p.family.OriginalDaddr(), nft.MetaL4proto, nft.CTOriginalProtoDst}
}

func (p *program) lookup(kind elementKind, nodePort bool) nft.Vmap {
	return nft.Vmap{Key: p.key(nodePort), Map: kind.setName(nodePort)}
}

func (p *program) find(kind elementKind, nodePort bool) nft.Rule {
	return nft.NewRule(p.lookup(kind, nodePort))
}

// newConnections calls a chain for the first packet of each connection. All other packets cost one comparison.
func newConnections(chain string) []nft.Rule {
	return []nft.Rule{nft.NewRule(isNew, nft.Jump(chain))}
}

// checks calls chains for packets that were not translated: an endpoint may itself be a frontend without endpoints.
func (p *program) checks(forward bool) []nft.Rule {
	translated := nft.Accept
	if p.hasAffinity() {
		translated = nft.Goto(chainAffinityCheck)
	}
	rules := []nft.Rule{nft.NewRule(wasTranslated, translated)}
	if p.has(noEndpointElement, false) {
		rules = append(rules, nft.NewRule(nft.Jump(chainNoEndpoints)))
	}
	switch {
	case forward:
		rules = append(rules, nft.NewRule(nft.Jump(chainClusterIPs)))
	case p.has(noEndpointElement, true):
		rules = append(rules, nft.NewRule(nft.Jump(chainNoEndpointNodePorts)))
	}
	return rules
}

var (
	isNew         = nft.Match{Field: nft.CTState, Value: nft.CTStateNew}
	wasTranslated = nft.Match{Field: nft.CTStatus, Value: nft.CTStatusDNAT}
)

func (p *program) services(chainSets []endpointChain) []nft.Rule {
	rules := append(p.front.Services(), p.findKnown(false)...)
	for _, c := range chainSets {
		rules = append(rules, nft.NewRule(nft.InSet{Key: p.key(false), Set: c.setName()}, nft.Goto(c.name())))
	}
	rules = append(rules, p.find(serviceElement, false))
	return append(rules, p.onNodePortAddresses(p.has(serviceElement, true), nft.Goto(chainNodePorts))...)
}

// findKnown leads clients of frontends with affinity to the chains for known clients.
func (p *program) findKnown(nodePort bool) []nft.Rule {
	if !p.has(knownElement, nodePort) {
		return nil
	}
	return []nft.Rule{p.find(knownElement, nodePort)}
}

func (p *program) clusterIPRules() []nft.Rule {
	daddr := p.family.Daddr()
	rules := []nft.Rule{{
		Statements: []nft.Statement{nft.InSet{Key: nft.Concat{daddr}, Set: ClusterIPs}, nft.Reject{Family: p.family}},
		Comment:    "a port that the ClusterIP does not have",
	}}
	if p.config.ServiceProxyName != "" {
		return rules // other proxies have Services in these ranges
	}
	drop := func(statements ...nft.Statement) {
		rules = append(rules, nft.Rule{Statements: append(statements, nft.Drop), Comment: "an address that no Service holds"})
	}
	for _, cidr := range prefixesOf(p.family, p.serviceCIDRs) {
		inCIDR := nft.Match{Field: daddr, Value: cidr}
		if p.config.CountRefused {
			drop(inCIDR, nft.InSet{Key: nft.Concat{nft.MetaL4proto}, Set: unassignedSet})
		}
		drop(inCIDR) // of other protocols, too
	}
	return rules
}

func (p *program) postrouting() []nft.Rule {
	bits := uint32(1) << p.config.MasqueradeBit
	rules := append(p.countIn(chainCountConnections), nft.NewRule(nft.MatchMark(bits, bits), nft.FlipMark(bits), nft.Masquerade))
	if p.has(hairpinElement, false) {
		pair := nft.Concat{p.family.Saddr(), p.family.Daddr()}
		rules = append(rules, nft.Rule{
			Statements: []nft.Statement{wasTranslated, nft.InSet{Key: pair, Set: hairpinSet}, nft.Masquerade},
			Comment:    "the endpoint is the client itself",
		})
	}
	return rules
}

// firewallRules drop connections to a guarded load balancer address from sources that loadBalancerSourceRanges does not
// name. They run before the destination is translated. Their base chains, which cost every packet time, exist while
// there is such an address.
func (p *program) firewallRules() []nft.Rule {
	rule := []nft.Statement{
		nft.InSet{Key: p.key(false), Set: guardedElement.setName(false)},
		nft.InSet{Key: append(p.key(false), p.family.Saddr()), Op: nft.NotEqual, Set: sourceElement.setName(false)},
	}
	if p.config.CountRefused { // refused-sources has all of guarded-ips
		rule = append(rule, nft.InSet{Key: p.key(false), Set: refusedSourceElement.setName(false)})
	}
	return []nft.Rule{nft.NewRule(append(rule, nft.Drop)...)}
}

func isLocalAddress(field nft.Field) nft.Statement {
	return nft.Match{Field: field, Op: nft.Equal, Value: nft.IntegerData(unix.RTN_LOCAL)}
}

func isProtocol(protocol model.Protocol) nft.Statement {
	return nft.Match{Field: nft.MetaL4proto, Value: nft.ProtoData(uint8(protocol))}
}

// Counting (Config.CountServices) has sets of its own, since elements of service-ips are replaced whenever the number of
// endpoints changes. Connections are counted in NAT chains of source translation, which run once for each connection: so
// retransmitted SYNs and refused connections do not count. Packets and bytes are counted in filter chains.

// countRules look up the address that the client dialed, from conntrack. External addresses may have a node port's
// number, so they are looked up first. Each protocol has rules of its own (dialedKey).
func (p *program) countRules(kind elementKind) (rules []nft.Rule) {
	for _, protocol := range protocols {
		for _, nodePort := range []bool{false, true} {
			rules = append(rules, nft.NewRule(isProtocol(protocol), nft.InSet{Key: p.dialedKey(nodePort), Set: kind.setName(nodePort)}, nft.Return))
		}
	}
	return rules
}

// countIn leads packets of connections whose destination was translated to a chain that counts.
func (p *program) countIn(chain string, match ...nft.Statement) []nft.Rule {
	if !p.config.CountServices {
		return nil
	}
	statements := append([]nft.Statement{wasTranslated}, match...)
	return []nft.Rule{nft.NewRule(append(statements, nft.Jump(chain))...)}
}
