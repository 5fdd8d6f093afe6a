package compiler

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// nodePortPrefixes returns the prefixes on which node ports answer. They are sorted, and none contains another.
func (f *family) nodePortPrefixes() []netip.Prefix {
	prefixes := slices.Clone(f.config.NodePortAddresses.CIDRs)
	if f.config.NodePortAddresses.Primary {
		for _, ip := range f.node.IPs {
			prefixes = append(prefixes, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	prefixes = prefixesOf(f.family, prefixes)
	// Packets to loopback addresses never leave the machine: no rule can send them elsewhere.
	loopback := f.family.Loopback()
	prefixes = slices.DeleteFunc(prefixes, func(p netip.Prefix) bool {
		return p.Bits() >= loopback.Bits() && loopback.Contains(p.Addr())
	})
	return withoutNested(prefixes)
}

// onNodePortAddresses returns rules that run a statement for packets to an address on which node ports answer. The
// address must also be the machine's own at that moment, because a prefix may cover other machines. Networks are left
// out if used is false: whether an address is the machine's own is a search in the routing table. Single addresses
// stay, since NodeFromTables reads them.
func (f *family) onNodePortAddresses(used bool, do nft.Statement) []nft.Rule {
	var rules []nft.Rule
	for _, p := range f.nodePortPrefixes() {
		if !used && !p.IsSingleIP() {
			continue
		}
		statements := []nft.Statement{}
		if p.Bits() > 0 {
			statements = append(statements, nft.Match{Field: f.family.Daddr(), Value: p})
		}
		statements = append(statements, isLocalAddress(nft.FibDaddrType))
		if p.Overlaps(f.family.Loopback()) {
			statements = append(statements, nft.Match{Field: f.family.Daddr(), Op: nft.NotEqual, Value: f.family.Loopback()})
		}
		rules = append(rules, nft.NewRule(append(statements, do)...))
	}
	return rules
}
