package localnodeport

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// loopback is what each family's loopback addresses are, and the one that everybody dials.
var loopback = map[model.Family]struct {
	prefix netip.Prefix
	usual  netip.Addr
}{
	model.IPv4: {netip.MustParsePrefix("127.0.0.0/8"), netip.MustParseAddr("127.0.0.1")},
	model.IPv6: {netip.MustParsePrefix("::1/128"), netip.IPv6Loopback()},
}

// Addresses returns where to listen for a list of nodePortAddresses: for each CIDR that is all
// loopback, 127.0.0.1 or ::1 if it holds that, else its first address. A CIDR that
// merely contains loopback addresses, such as 0.0.0.0/0, does not ask for them.
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
