package localnodeport

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// loopback holds each family's prefix of loopback addresses, and the usual one among them.
var loopback = map[model.Family]struct {
	prefix netip.Prefix
	usual  netip.Addr
}{
	model.IPv4: {netip.MustParsePrefix("127.0.0.0/8"), netip.MustParseAddr("127.0.0.1")},
	model.IPv6: {netip.MustParsePrefix("::1/128"), netip.IPv6Loopback()},
}

// Addresses returns the addresses to listen on for a list of nodePortAddresses. For each CIDR of loopback
// addresses only, that is 127.0.0.1 or ::1 if the CIDR contains it, else its first address. A CIDR that
// contains other addresses too, such as 0.0.0.0/0, does not count.
func Addresses(nodePortAddresses []netip.Prefix) []netip.Addr {
	var addresses []netip.Addr
	for _, p := range nodePortAddresses {
		known := loopback[model.FamilyOf(p.Addr())]
		if p.Bits() < known.prefix.Bits() || !known.prefix.Contains(p.Addr()) {
			continue
		}
		addr := p.Masked().Addr()
		if p.Contains(known.usual) {
			addr = known.usual
		}
		if !slices.Contains(addresses, addr) {
			addresses = append(addresses, addr)
		}
	}
	return addresses
}
