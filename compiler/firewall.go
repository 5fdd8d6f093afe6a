package compiler

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// sourcesFor returns the prefixes that may dial a load balancer address, given the Service's ranges. They are sorted,
// and none contains another: the kernel refuses ranges that overlap. If a range contains an address of the node, the
// load balancer's address is added: where the node has that address itself, packets that it sends there have it as
// their source.
func (f *family) sourcesFor(fe frontend, ranges []netip.Prefix) []netip.Prefix {
	sources := slices.Clone(ranges)
	for _, ip := range f.node.IPs {
		if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			sources = append(sources, netip.PrefixFrom(fe.addr, fe.addr.BitLen()))
			break
		}
	}
	return withoutNested(sources)
}

// putFirewall puts the chains that guard load balancer addresses, and removes them while there are none to guard: a
// base chain costs every packet time.
func (f *family) putFirewall() {
	for _, c := range []*nft.Chain{
		{Name: "filter-prerouting-pre-dnat", Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT - 10, Rules: newConnections(chainFirewall)},
		{Name: "filter-output-pre-dnat", Type: nft.TypeFilter, Hook: nft.HookOutput, Priority: nft.PriorityDstNAT - 10, Rules: newConnections(chainFirewall)},
		{Name: chainFirewall, Rules: f.firewallRules()},
	} {
		f.putChainIf(f.uses.guarded, c)
	}
}

// firewallRules drop connections to a guarded load balancer address from sources that
// loadBalancerSourceRanges does not name. They run before the destination is translated,
// and look at the packet's own source.
func (f *family) firewallRules() []nft.Rule {
	return []nft.Rule{nft.NewRule(
		nft.InSet{Key: f.key(false), Set: f.sets.guardedIPs.Name},
		nft.InSet{Key: append(f.key(false), f.family.Saddr()), Op: nft.NotEqual, Set: f.sets.allowedSources.Name},
		nft.Drop,
	)}
}

// putSources puts the prefixes that may dial a frontend into allowed-sources, and the frontend into guarded-ips.
func (f *family) putSources(e frontendElements) {
	have, want := e.have.sources, e.want.sources
	if len(have) == 0 && len(want) == 0 {
		return
	}
	guarded, allowed := f.sets.guardedIPs, f.sets.allowedSources
	f.putElementIf(len(want) > 0, guarded, nft.Element{Key: e.key, Comment: e.want.comment})
	starts := map[netip.Addr]bool{}
	for _, p := range want {
		starts[p.Addr()] = true
		f.draft.Put(allowed, nft.Element{
			Key:     e.key + nft.AddrData(p.Addr()),
			KeyEnd:  e.key + nft.AddrData(lastAddr(p)),
			Comment: e.want.comment,
		})
	}
	for _, p := range have {
		if !starts[p.Addr()] {
			f.draft.Remove(allowed, e.key+nft.AddrData(p.Addr()))
		}
	}
}
