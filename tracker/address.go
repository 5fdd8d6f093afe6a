package tracker

import (
	"errors"
	"net/netip"
	"strings"
)

var (
	errMapped = errors.New("IPv4 address written as IPv6")
	errZone   = errors.New("address with a zone")
	errNoHost = errors.New("address that cannot be a Service's or an endpoint's")
)

// parseAddr parses an IP address of a Kubernetes object. It refuses leading zeros, because programs
// disagree on whether they mean octal (CVE-2021-29923), and 4-in-6 addresses, because programs
// disagree on their family. (KEP-4858 forbids both in new objects.) Like the API server, it refuses
// addresses that cannot be a Service's or an endpoint's: a manifest has not passed that validation.
func parseAddr(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, err
	case addr.Is4In6():
		return netip.Addr{}, errMapped
	case addr.Zone() != "":
		return netip.Addr{}, errZone
	case addr.IsUnspecified(), addr.IsLoopback(), addr.IsMulticast():
		return netip.Addr{}, errNoHost
	}
	return addr, nil
}

// parsePrefix parses a CIDR. It accepts surrounding blanks and bits beyond the mask, because the API
// server allowed both in loadBalancerSourceRanges.
func parsePrefix(s string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(strings.TrimSpace(s))
	if err != nil {
		return netip.Prefix{}, err
	}
	if prefix.Addr().Is4In6() {
		return netip.Prefix{}, errMapped
	}
	return prefix.Masked(), nil
}
