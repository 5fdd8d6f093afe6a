package proxytest

import (
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Family is an IP family.
type Family int

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// ParseFamilies reads the value of --family: 4, 6 or dual.
func ParseFamilies(text string) ([]Family, error) {
	switch text {
	case "4":
		return []Family{IPv4}, nil
	case "6":
		return []Family{IPv6}, nil
	case "dual":
		return []Family{IPv4, IPv6}, nil
	}
	return nil, fmt.Errorf("family %q is not 4, 6 or dual", text)
}

func (f Family) String() string { return fmt.Sprintf("IPv%d", int(f)) }

func (f Family) addressType() discoveryv1.AddressType { return discoveryv1.AddressType(f.String()) }

func (f Family) address(addrs lab.Addrs) netip.Addr {
	if f == IPv4 {
		return addrs.IPv4
	}
	return addrs.IPv6
}

func familyOf(addr netip.Addr) Family {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}
