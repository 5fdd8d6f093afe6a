package nft

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Family is the address family of a table.
type Family uint8

// The families that this package handles.
const (
	FamilyIP  Family = unix.NFPROTO_IPV4
	FamilyIP6 Family = unix.NFPROTO_IPV6
)

// Families lists both families, in the order in which everything here is printed.
var Families = [...]Family{FamilyIP, FamilyIP6}

// String returns nft's word for the family: "ip" or "ip6".
func (f Family) String() string {
	switch f {
	case FamilyIP:
		return "ip"
	case FamilyIP6:
		return "ip6"
	}
	return fmt.Sprintf("family-%d", uint8(f))
}

// Saddr is the field with the source address in packets of the family.
func (f Family) Saddr() Field {
	if f == FamilyIP6 {
		return IP6Saddr
	}
	return IPSaddr
}

// Daddr is the field with the destination address in packets of the family.
func (f Family) Daddr() Field {
	if f == FamilyIP6 {
		return IP6Daddr
	}
	return IPDaddr
}

// OriginalDaddr is the field with the destination address that the first packet of a connection had
// before it was translated.
func (f Family) OriginalDaddr() Field {
	if f == FamilyIP6 {
		return CTOriginalIP6Daddr
	}
	return CTOriginalIPDaddr
}

// Loopback is the prefix of the family's loopback addresses.
func (f Family) Loopback() netip.Prefix {
	if f == FamilyIP6 {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
}
