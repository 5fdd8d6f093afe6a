package compiler

import (
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

// withoutNested sorts the prefixes, and returns them without those that another one contains.
func withoutNested(prefixes []netip.Prefix) (out []netip.Prefix) {
	// A wide prefix sorts right before all that it contains.
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	for _, p := range prefixes {
		if len(out) == 0 || !out[len(out)-1].Contains(p.Addr()) {
			out = append(out, p.Masked())
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
