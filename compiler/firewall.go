package compiler

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// guardSet is the name of the set of load balancer addresses that only some sources may dial.
const guardSet = "guarded-ips"

// sourcesFor returns who may dial a load balancer address, given the Service's ranges,
// sorted and without what another prefix contains, since the kernel takes no ranges that
// overlap. A range with the node's own address lets the load balancer's address in too:
// where that address is on the node, packets that the node sends to it come from it.
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

// resettleGuarded brings guarded frontends in line after the node's addresses changed.
func (f *family) resettleGuarded() {
	for fe, p := range f.programmed {
		if len(p.sources) > 0 {
			f.settle(fe)
		}
	}
}

// withoutNested sorts prefixes and leaves out those that another one contains.
func withoutNested(prefixes []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		sorted[i] = p.Masked()
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	// A wide prefix sorts right before all that it contains.
	var out []netip.Prefix
	for _, p := range sorted {
		if len(out) == 0 || !out[len(out)-1].Contains(p.Addr()) {
			out = append(out, p)
		}
	}
	return out
}

// putFirewall puts the chains that guard load balancer addresses, as long as there are any: packets pay for base chains
// even if these do nothing.
func (f *family) putFirewall() {
	chains := []*nft.Chain{
		{Name: "filter-prerouting-pre-dnat", Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT - 10, Rules: newConnections(chainFirewall)},
		{Name: "filter-output-pre-dnat", Type: nft.TypeFilter, Hook: nft.HookOutput, Priority: nft.PriorityDstNAT - 10, Rules: newConnections(chainFirewall)},
		{Name: chainFirewall, Rules: f.firewallRules()},
	}
	for _, c := range chains {
		if f.guardedIPs.Len() > 0 {
			f.draft.PutChain(c)
		} else {
			f.draft.RemoveChain(c.Name)
		}
	}
}

// firewallRules drop connections to a guarded load balancer address from sources that
// loadBalancerSourceRanges does not name. They run before the destination is translated,
// and look at the packet's own source.
func (f *family) firewallRules() []nft.Rule {
	return []nft.Rule{nft.NewRule(
		nft.InSet{Key: f.key(false), Set: f.guardedIPs.Name},
		nft.InSet{Key: append(f.key(false), f.nft.Saddr()), Op: nft.NotEqual, Set: f.allowedSources.Name},
		nft.Drop,
	)}
}

// putSources brings the elements for who may dial a frontend in line.
func (f *family) putSources(fe frontend, have, want plan) {
	if len(have.sources) == 0 && len(want.sources) == 0 {
		return
	}
	key := nft.Data(fe.appendKey(nil))
	before := f.guardedIPs.Len() > 0
	if len(want.sources) > 0 {
		f.draft.Put(f.guardedIPs, nft.Element{Key: key, Comment: want.comment})
	} else {
		f.draft.Remove(f.guardedIPs, key)
	}
	starts := map[netip.Addr]bool{}
	for _, p := range want.sources {
		starts[p.Addr()] = true
		f.draft.Put(f.allowedSources, nft.Element{
			Key:     key + nft.AddrData(p.Addr()),
			KeyEnd:  key + nft.AddrData(lastAddr(p)),
			Comment: want.comment,
		})
	}
	for _, p := range have.sources {
		if !starts[p.Addr()] {
			f.draft.Remove(f.allowedSources, key+nft.AddrData(p.Addr()))
		}
	}
	if f.guardedIPs.Len() > 0 != before {
		f.putFirewall()
	}
}

// lastAddr returns the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
