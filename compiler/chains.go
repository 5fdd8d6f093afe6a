package compiler

import (
	"net/netip"
	"strconv"

	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// chainKind is what a chain that ends in an endpoint does besides choosing it. The name of
// the chain is the kind and the number of endpoints.
type chainKind string

const (
	// kindCluster serves ClusterIPs: clients from outside the cluster are masqueraded.
	kindCluster chainKind = "cluster"
	// kindExternal serves external traffic with policy Cluster: always masqueraded.
	kindExternal chainKind = "external"
	// kindLocal serves external traffic with policy Local: the client's address is kept,
	// and only clients of the cluster and the node may go to other nodes.
	kindLocal chainKind = "local"
	// kindDirect only chooses an endpoint: for clients of the cluster under policy Local, and for clients with affinity that
	// are new.
	kindDirect chainKind = "direct"
	// kindDirectLocal chooses among the endpoints for policy Local: for clients with affinity that are new.
	kindDirectLocal chainKind = "direct-local"
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

// balancer identifies a chain that ends in an endpoint.
type balancer struct {
	kind     chainKind
	nodePort bool
	count    int
	// affinity says that clients go where they went before. With one endpoint they do anyway.
	affinity balancerAffinity
	// hash has the hash of a client's address choose.
	hash bool
}

// choice returns the balancer that chooses an endpoint for clients of b that are new, if that is another one; the zero value if
// not. Chains of a Service port with affinity leave the choice to chains that all ports share. Whenever an element is added to a map,
// the kernel walks all rules that look it up, so these must not become more with each Service.
func (b balancer) choice(hash bool) balancer {
	switch {
	case b.affinity.port == "":
		return balancer{}
	case b.kind == kindLocal:
		return balancer{kind: kindDirectLocal, nodePort: b.nodePort, count: b.count, hash: hash}
	}
	return balancer{kind: kindDirect, nodePort: b.nodePort, count: b.count, hash: hash}
}

// balancerAffinity is the affinity of a chain that serves one Service port only; the zero value is none.
type balancerAffinity struct {
	// port is affinityName of the port.
	port     string
	protocol uint8
	list     affinityList
}

func (b balancer) name() string {
	name := string(b.kind)
	if b.kind == kindCluster && b.affinity.list == listLocal {
		name += "-local"
	}
	if b.hash {
		name += "-hash"
	}
	name += "-" + strconv.Itoa(b.count)
	if b.affinity.port != "" {
		name = "affinity-" + name + "." + b.affinity.port
	}
	if b.nodePort {
		return "nodeport-" + name
	}
	return name
}

// balancerChain builds the chain: what comes before the choice, then the choice.
func (f *family) balancerChain(b balancer) *nft.Chain {
	c := &nft.Chain{Name: b.name()}
	switch b.kind {
	case kindCluster:
		c.Rules = f.beforeCluster()
	case kindExternal:
		c.Rules = []nft.Rule{nft.NewRule(nft.SetMarkBits{Bits: f.config.markBits()})}
	case kindLocal:
		shortCircuit := chainShortCircuit
		if b.nodePort {
			shortCircuit = chainShortCircuitNodePorts
		}
		c.Rules = []nft.Rule{nft.NewRule(nft.Jump(shortCircuit))}
	}
	if b.affinity.port != "" {
		c.Rules = append(c.Rules, f.returning(b), nft.NewRule(nft.Goto(b.choice(f.config.AffinityHash).name())))
	} else {
		c.Rules = append(c.Rules, f.draws(b)...)
	}
	return c
}

func (f *family) beforeCluster() []nft.Rule {
	switch {
	case f.config.MasqueradeAll:
		return []nft.Rule{nft.NewRule(nft.SetMarkBits{Bits: f.config.markBits()})}
	case len(f.localClients()) > 0:
		return []nft.Rule{nft.NewRule(nft.Jump(chainMarkUnlessLocal))}
	}
	return nil
}

// draws chooses a slot and translates to the endpoint in it. A packet can run while a commit
// takes effect and draw a slot that is just gone; a second rule then takes slot 0.
func (f *family) draws(b balancer) []nft.Rule {
	draw := func(slot nft.Expr) nft.Rule {
		return nft.NewRule(nft.DNAT{Family: f.nft, Key: append(f.key(b.nodePort), slot), Map: f.endpointsOf(b).Name})
	}
	first := draw(nft.Numgen{Mod: 1})
	switch b.count {
	case 0:
		return nil
	case 1:
		return []nft.Rule{first}
	}
	return []nft.Rule{draw(f.slot(b)), first}
}

// slot chooses one of the balancer's endpoints.
func (f *family) slot(b balancer) nft.Expr {
	if b.hash {
		return nft.JHash{Field: f.nft.Saddr(), Mod: uint32(b.count), Seed: affinitySeed}
	}
	return nft.Numgen{Mod: uint32(b.count)}
}

// endpointsOf returns the map that the balancer's endpoints are in.
func (f *family) endpointsOf(b balancer) *nft.Set {
	local := b.kind == kindLocal || b.kind == kindDirectLocal
	switch {
	case local && b.nodePort:
		return f.localNodePortEndpoints
	case local:
		return f.localEndpoints
	case b.nodePort:
		return f.nodePortEndpoints
	}
	return f.endpoints
}

// key is what the maps know a frontend by.
func (f *family) key(nodePort bool) nft.Concat {
	if nodePort {
		return nft.Concat{nft.MetaL4proto, nft.ThDport}
	}
	return nft.Concat{f.nft.Daddr(), nft.MetaL4proto, nft.ThDport}
}

func isLocalAddress(field nft.Field) nft.Statement {
	return nft.Match{Field: field, Op: nft.Equal, Value: nft.IntegerData(unix.RTN_LOCAL)}
}

// putFixedChains puts the part of the program that depends on configuration, node and
// ServiceCIDRs only. Chains that are the same as before cost nothing.
func (f *family) putFixedChains() {
	// Each base chain decides anew which generation of rules a packet sees, and each lookup which generation of
	// elements. A packet with the rules from before a commit can find a new element that leads to a chain
	// which has no rules yet for it. So base chains come in twos: the second one sees what the commit made. It
	// is not run for what the first one translated.
	services := []nft.Rule{nft.NewRule(nft.Jump(chainServices))}
	for _, c := range []*nft.Chain{
		{Name: "nat-prerouting", Type: nft.TypeNAT, Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT, Rules: services},
		{Name: "nat-output", Type: nft.TypeNAT, Hook: nft.HookOutput, Priority: nft.PriorityDstNAT, Rules: services},
		{Name: "nat-prerouting-again", Type: nft.TypeNAT, Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT + 1, Rules: services},
		{Name: "nat-output-again", Type: nft.TypeNAT, Hook: nft.HookOutput, Priority: nft.PriorityDstNAT + 1, Rules: services},
		{Name: "filter-input", Type: nft.TypeFilter, Hook: nft.HookInput, Priority: nft.PriorityFilter, Rules: newConnections(chainInputCheck)},
		{Name: "filter-forward", Type: nft.TypeFilter, Hook: nft.HookForward, Priority: nft.PriorityFilter, Rules: newConnections(chainForwardCheck)},
		{Name: "filter-output", Type: nft.TypeFilter, Hook: nft.HookOutput, Priority: nft.PriorityFilter, Rules: newConnections(chainForwardCheck)},
		{Name: "nat-postrouting", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: nft.PrioritySrcNAT, Rules: f.postrouting()},
		{Name: chainServices, Rules: f.servicesRules()},
		{Name: chainNodePorts, Rules: []nft.Rule{nft.NewRule(nft.Vmap{Key: f.key(true), Map: f.serviceNodePorts.Name})}},
		{Name: chainShortCircuit, Rules: f.shortCircuitRules(false, f.shortCircuitIPs)},
		{Name: chainShortCircuitNodePorts, Rules: f.shortCircuitRules(true, f.shortCircuitNodePorts)},
		{Name: chainInputCheck, Rules: f.checks(chainNoEndpoints, chainNoEndpointNodePorts)},
		{Name: chainForwardCheck, Rules: f.checks(chainNoEndpoints, chainClusterIPs)},
		{Name: chainNoEndpoints, Rules: []nft.Rule{nft.NewRule(nft.Vmap{Key: f.key(false), Map: f.noEndpointServices.Name})}},
		{Name: chainNoEndpointNodePorts, Rules: f.onNodePortAddresses(nft.Vmap{Key: f.key(true), Map: f.noEndpointNodePorts.Name})},
		{Name: chainClusterIPs, Rules: f.clusterIPRules()},
		{Name: chainReject, Rules: []nft.Rule{nft.NewRule(nft.Reject{Family: f.nft})}},
	} {
		f.draft.PutChain(c)
	}
	f.putMarkUnlessLocal()
	f.putAffinityCheck()
	f.putFirewall()
}

// newConnections has a chain look at the first packet of each connection. All other packets pay for one comparison.
func newConnections(chain string) []nft.Rule {
	return []nft.Rule{nft.NewRule(nft.MatchFlags{Field: nft.CTState, Bits: nft.CTStateNew}, nft.Jump(chain))}
}

// checks has chains look at packets whose destination was not translated. An endpoint may have the address of a
// frontend without endpoints, so translated packets pass.
func (f *family) checks(chains ...string) []nft.Rule {
	rules := []nft.Rule{nft.NewRule(nft.MatchFlags{Field: nft.CTStatus, Bits: nft.CTStatusDNAT}, f.afterTranslation())}
	for _, chain := range chains {
		rules = append(rules, nft.NewRule(nft.Jump(chain)))
	}
	return rules
}

func (f *family) putMarkUnlessLocal() {
	clients := f.localClients()
	if len(clients) == 0 || f.config.MasqueradeAll {
		f.draft.RemoveChain(chainMarkUnlessLocal)
		return
	}
	c := &nft.Chain{Name: chainMarkUnlessLocal}
	for _, match := range clients {
		c.Rules = append(c.Rules, nft.NewRule(match, nft.Verdict{Kind: nft.Return}))
	}
	c.Rules = append(c.Rules, nft.NewRule(nft.SetMarkBits{Bits: f.config.markBits()}))
	f.draft.PutChain(c)
}

// localClients returns the matches that each recognise clients of the cluster.
func (f *family) localClients() []nft.Statement {
	var out []nft.Statement
	for _, p := range f.localCIDRs() {
		out = append(out, nft.MatchPrefix{Field: f.nft.Saddr(), Prefix: p})
	}
	if name := f.config.DetectLocal.Interface; name != "" {
		out = append(out, nft.MatchIfname{Field: nft.MetaIifname, Name: name})
	}
	return out
}

// localCIDRs returns the addresses of clients of the cluster.
func (f *family) localCIDRs() []netip.Prefix {
	cidrs := f.config.DetectLocal.CIDRs
	if f.config.DetectLocal.NodePodCIDRs {
		cidrs = append(cidrs[:len(cidrs):len(cidrs)], f.node.PodCIDRs...)
	}
	return prefixesOf(f.nft, cidrs)
}

func (f *family) servicesRules() []nft.Rule {
	return append(
		[]nft.Rule{nft.NewRule(nft.Vmap{Key: f.key(false), Map: f.serviceIPs.Name})},
		f.onNodePortAddresses(nft.Goto(chainNodePorts))...)
}

// onNodePortAddresses returns rules that do what is given for packets to an address on
// which node ports answer. The address must be one of the node's own at that moment,
// whatever the configuration says: a range may cover other machines.
func (f *family) onNodePortAddresses(do nft.Statement) []nft.Rule {
	var rules []nft.Rule
	for _, p := range f.nodePortPrefixes() {
		statements := []nft.Statement{}
		if p.Bits() > 0 {
			statements = append(statements, nft.MatchPrefix{Field: f.nft.Daddr(), Prefix: p})
		}
		statements = append(statements, isLocalAddress(nft.FibDaddrType))
		if p.Overlaps(f.nft.Loopback()) {
			statements = append(statements, nft.MatchPrefix{Field: f.nft.Daddr(), Op: nft.NotEqual, Prefix: f.nft.Loopback()})
		}
		rules = append(rules, nft.NewRule(append(statements, do)...))
	}
	return rules
}

// shortCircuitRules treat clients of the cluster and of the node, under policy Local, as if
// their packets went out and came back through a load balancer: any endpoint may serve.
func (f *family) shortCircuitRules(nodePort bool, m *nft.Set) []nft.Rule {
	choose := nft.Vmap{Key: f.key(nodePort), Map: m.Name}
	var rules []nft.Rule
	for _, match := range f.localClients() {
		rules = append(rules, nft.NewRule(match, choose))
	}
	return append(rules, nft.NewRule(isLocalAddress(nft.FibSaddrType), nft.SetMarkBits{Bits: f.config.markBits()}, choose))
}

func (f *family) clusterIPRules() []nft.Rule {
	daddr := f.nft.Daddr()
	rules := []nft.Rule{{
		Statements: []nft.Statement{nft.InSet{Key: nft.Concat{daddr}, Set: f.clusterIPs.Name}, nft.Reject{Family: f.nft}},
		Comment:    "a port that the ClusterIP does not have",
	}}
	for _, p := range prefixesOf(f.nft, f.serviceCIDRs) {
		rules = append(rules, nft.Rule{
			Statements: []nft.Statement{nft.MatchPrefix{Field: daddr, Prefix: p}, nft.Drop},
			Comment:    "an address that no Service holds",
		})
	}
	return rules
}

func (f *family) postrouting() []nft.Rule {
	bits := f.config.markBits()
	pair := nft.Concat{f.nft.Saddr(), f.nft.Daddr()}
	return []nft.Rule{
		nft.NewRule(nft.MatchMark{Bits: bits}, nft.FlipMarkBits{Bits: bits}, nft.Masquerade{}),
		{
			Statements: []nft.Statement{nft.MatchFlags{Field: nft.CTStatus, Bits: nft.CTStatusDNAT}, nft.InSet{Key: pair, Set: f.hairpin.Name}, nft.Masquerade{}},
			Comment:    "the endpoint is the client itself",
		},
	}
}
