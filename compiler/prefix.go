package compiler

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// prefixesOf returns the prefixes of a family.
func prefixesOf(f nft.Family, prefixes []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range prefixes {
		if p.Addr().Is4() == (f == nft.FamilyIP) {
			out = append(out, p.Masked())
		}
	}
	return out
}

// withoutNested returns the prefixes, sorted, without those that another one contains.
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

// lastAddr returns the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
