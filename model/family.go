package model

import (
	"fmt"
	"net/netip"
)

// Family is an IP family. The zero value is not a family.
type Family uint8

// The two IP families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both families, in printing order.
var Families = [...]Family{IPv4, IPv6}

// FamilyOf returns the family of addr. A 4-in-6 address counts as IPv6; Kubernetes refuses 4-in-6 addresses in
// Services.
func FamilyOf(addr netip.Addr) Family {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "IPv4" or "IPv6", Kubernetes' own spelling (core/v1 IPFamily).
func (f Family) String() string {
	if f == IPv4 || f == IPv6 {
		return fmt.Sprintf("IPv%d", uint8(f))
	}
	return fmt.Sprintf("Family(%d)", uint8(f))
}

// Protocol is an IANA transport protocol number that a Service port may have.
type Protocol uint8

// The protocols of a Service port.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns "TCP", "UDP" or "SCTP", Kubernetes' own spelling (core/v1 Protocol).
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("Protocol(%d)", uint8(p))
}

// ParseProtocol is the inverse of Protocol.String. The empty string is TCP, as in a Service; any other text is an
// error.
func ParseProtocol(s string) (Protocol, error) {
	switch s {
	case "TCP", "":
		return TCP, nil
	case "UDP":
		return UDP, nil
	case "SCTP":
		return SCTP, nil
	}
	return 0, fmt.Errorf("unsupported protocol %q: a Service port is TCP, UDP or SCTP", s)
}
