package nft

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Family is the address family of a table. Its values are the kernel's numbers (NFPROTO_*).
type Family uint8

// The families that this package handles.
const (
	FamilyIP  Family = unix.NFPROTO_IPV4
	FamilyIP6 Family = unix.NFPROTO_IPV6
)

// familyOf returns the family with the kernel's number nfproto. It is an error for the families that this package does
// not handle, such as inet.
func familyOf(nfproto uint32) (Family, error) {
	switch nfproto {
	case unix.NFPROTO_IPV4:
		return FamilyIP, nil
	case unix.NFPROTO_IPV6:
		return FamilyIP6, nil
	}
	return 0, fmt.Errorf("family %d is neither ip nor ip6", nfproto)
}

// nfproto returns the kernel's number of the family, which messages and NAT expressions carry.
func (f Family) nfproto() uint8 { return uint8(f) }

// check returns an error for the families that this package does not handle.
func (f Family) check() error {
	_, err := familyOf(uint32(f))
	return err
}

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

// byFamily returns the value for the family.
func byFamily[T any](f Family, ip, ip6 T) T {
	if f == FamilyIP6 {
		return ip6
	}
	return ip
}

// Saddr is the field with the source address in packets of the family.
func (f Family) Saddr() Field { return byFamily(f, IPSaddr, IP6Saddr) }

// Daddr is the field with the destination address in packets of the family.
func (f Family) Daddr() Field { return byFamily(f, IPDaddr, IP6Daddr) }

// OriginalDaddr is the field with the destination address that the first packet of a connection had
// before it was translated.
func (f Family) OriginalDaddr() Field { return byFamily(f, CTOriginalIPDaddr, CTOriginalIP6Daddr) }

// Loopback is the prefix of the family's loopback addresses.
func (f Family) Loopback() netip.Prefix {
	return byFamily(f, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
}
