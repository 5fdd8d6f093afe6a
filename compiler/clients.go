package compiler

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// masquerading returns the rules that begin chains of kindCluster and kindExternal. They masquerade
// all clients, or, for ClusterIPs, all clients outside the cluster. If the cluster's own clients
// are one network, as nearly everywhere, the rules need no jump.
func (p *program) masquerading(kind chainKind) []nft.Rule {
	clients := p.localClients()
	local, isOne := onlyPrefix(clients)
	switch {
	case kind == kindExternal || p.config.MasqueradeAll:
		return []nft.Rule{nft.NewRule(p.mark())}
	case len(clients) == 0:
		return nil
	case isOne:
		local.Op = nft.NotEqual
		return []nft.Rule{nft.NewRule(local, p.mark())}
	}
	return []nft.Rule{nft.NewRule(nft.Jump(chainMarkUnlessLocal))}
}

func (p *program) mark() nft.Assign { return nft.SetMark(1 << p.config.MasqueradeBit) }

// onlyPrefix returns the prefix that matches clients of the cluster, if nothing else does.
func onlyPrefix(clients []nft.Statement) (nft.Match, bool) {
	if len(clients) != 1 {
		return nft.Match{}, false
	}
	m, _ := clients[0].(nft.Match)
	_, ok := m.Value.(netip.Prefix)
	return m, ok
}

// markUnlessLocal returns the rules of the chain to which masquerading jumps; nil if it does not.
func (p *program) markUnlessLocal() (rules []nft.Rule) {
	clients := p.localClients()
	if _, one := onlyPrefix(clients); one || len(clients) == 0 || p.config.MasqueradeAll {
		return nil
	}
	for _, match := range clients {
		rules = append(rules, nft.NewRule(match, nft.Return))
	}
	return append(rules, nft.NewRule(p.mark()))
}

func (p *program) localClients() []nft.Statement {
	var out []nft.Statement
	for _, cidr := range p.localCIDRs() {
		out = append(out, nft.Match{Field: p.family.Saddr(), Value: cidr})
	}
	if name := p.config.DetectLocal.Interface; name != "" {
		out = append(out, nft.Match{Field: nft.MetaIifname, Value: name})
	}
	return out
}

// localCIDRs returns the prefixes of the family that hold the addresses of clients of the cluster.
func (p *program) localCIDRs() []netip.Prefix {
	cidrs := p.config.DetectLocal.CIDRs
	if p.config.DetectLocal.NodePodCIDRs {
		cidrs = append(cidrs[:len(cidrs):len(cidrs)], p.node.PodCIDRs...)
	}
	return prefixesOf(p.family, cidrs)
}

// isLocalClient reports whether a client is of the cluster or the node, and whether the address alone decides it.
func (p *program) isLocalClient(client netip.Addr) (local, known bool) {
	local = slices.Contains(p.node.IPs, client) ||
		slices.ContainsFunc(p.localCIDRs(), func(cidr netip.Prefix) bool { return cidr.Contains(client) })
	return local, local || p.config.DetectLocal.Interface == ""
}

// shortCircuitRules let any endpoint serve clients of the cluster and of the node under policy Local.
func (p *program) shortCircuitRules(nodePort bool) []nft.Rule {
	choose := p.lookup(shortCircuitElement, nodePort)
	var rules []nft.Rule
	for _, match := range p.localClients() {
		rules = append(rules, nft.NewRule(match, choose))
	}
	return append(rules, nft.NewRule(isLocalAddress(nft.FibSaddrType), p.mark(), choose))
}

// nodePortPrefixes returns the prefixes on which node ports answer. They are sorted, and none contains another.
func (p *program) nodePortPrefixes() []netip.Prefix {
	prefixes := slices.Clone(p.config.NodePortAddresses.CIDRs)
	if p.config.NodePortAddresses.Primary {
		for _, ip := range p.node.IPs {
			prefixes = append(prefixes, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	prefixes = prefixesOf(p.family, prefixes)
	// Packets to loopback addresses never leave the machine: no rule can send them elsewhere.
	loopback := p.family.Loopback()
	prefixes = slices.DeleteFunc(prefixes, func(prefix netip.Prefix) bool {
		return prefix.Bits() >= loopback.Bits() && loopback.Contains(prefix.Addr())
	})
	return withoutNested(prefixes)
}

// nodePortRanges returns the prefixes of nodePortPrefixes that have rules: without used only single addresses, which
// NodeFromTables reads.
func (p *program) nodePortRanges(used bool) []netip.Prefix {
	return slices.DeleteFunc(p.nodePortPrefixes(), func(prefix netip.Prefix) bool { return !used && !prefix.IsSingleIP() })
}

// onNodePortAddresses returns rules that run a statement for packets to an address on which node ports answer, if it is
// the machine's own at that moment.
func (p *program) onNodePortAddresses(used bool, do nft.Statement) []nft.Rule {
	var rules []nft.Rule
	for _, prefix := range p.nodePortRanges(used) {
		var statements []nft.Statement
		if prefix.Bits() > 0 {
			statements = append(statements, nft.Match{Field: p.family.Daddr(), Value: prefix})
		}
		statements = append(statements, isLocalAddress(nft.FibDaddrType))
		if prefix.Overlaps(p.family.Loopback()) {
			statements = append(statements, nft.Match{Field: p.family.Daddr(), Op: nft.NotEqual, Value: p.family.Loopback()})
		}
		rules = append(rules, nft.NewRule(append(statements, do)...))
	}
	return rules
}

// sourcesFor returns the prefixes that may dial a load balancer address, given the Service's ranges. It leaves out nested
// prefixes, because the kernel refuses ranges that overlap. If a range contains an address of the node, it adds the load
// balancer's address: a node that has this address itself sends packets to it with it as their source.
func (p *program) sourcesFor(fe frontend, ranges []netip.Prefix) []netip.Prefix {
	sources := slices.Clone(ranges)
	for _, ip := range p.node.IPs {
		if slices.ContainsFunc(ranges, func(source netip.Prefix) bool { return source.Contains(ip) }) {
			sources = append(sources, netip.PrefixFrom(fe.addr, fe.addr.BitLen()))
			break
		}
	}
	return withoutNested(sources)
}

func prefixesOf(f nft.Family, prefixes []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range prefixes {
		if p.Addr().Is4() == (f == nft.FamilyIP) {
			out = append(out, p.Masked())
		}
	}
	return out
}

// withoutNested sorts the prefixes, and returns them without prefixes that another prefix contains.
func withoutNested(prefixes []netip.Prefix) (out []netip.Prefix) {
	// A wide prefix sorts right before the prefixes that it contains.
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	for _, p := range prefixes {
		if len(out) == 0 || !out[len(out)-1].Contains(p.Addr()) {
			out = append(out, p.Masked())
		}
	}
	return out
}

// prefixBetween returns the longest prefix that contains both addresses.
func prefixBetween(from, to nft.Data) netip.Prefix {
	first, _ := netip.AddrFromSlice([]byte(from))
	last, _ := netip.AddrFromSlice([]byte(to))
	p := netip.PrefixFrom(first, first.BitLen())
	for p.Bits() > 0 && !p.Contains(last) {
		p, _ = first.Prefix(p.Bits() - 1)
	}
	return p
}
