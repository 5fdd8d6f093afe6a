package tracker

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/model"
)

var (
	errMapped = errors.New("IPv4 address written as IPv6")
	errZone   = errors.New("address with a zone")
	errNoHost = errors.New("address that cannot be a Service's or an endpoint's")
)

// parseAddr parses an IP address of a Kubernetes object. It refuses leading zeros, because programs disagree on whether
// they mean octal (CVE-2021-29923), and 4-in-6 addresses, because programs disagree on their family. (KEP-4858 forbids
// both in new objects.) Like the API server, it refuses addresses that a Service or an endpoint cannot have: no server
// has validated a manifest.
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

var errUnreadableGuard = errors.New("not served: loadBalancerSourceRanges holds a range that cannot be read, and none of this family")

// parseSourceRanges sorts loadBalancerSourceRanges by family. As in kube-proxy, a family without ranges, or with a
// range of length 0, is not guarded. bases must have the load balancer IPs.
func (s *service) parseSourceRanges(texts []string, bases *bothFamilies) {
	if len(texts) == 0 {
		return
	}
	skips := len(s.skips)
	prefixes := parsePrefixes(texts, "spec.loadBalancerSourceRanges", &s.skips)
	unreadable := len(s.skips) > skips
	for _, family := range model.Families {
		base := bases.in(family)
		var ranges []netip.Prefix
		for _, prefix := range prefixes {
			if model.FamilyOf(prefix.Addr()) == family {
				ranges = append(ranges, prefix)
			}
		}
		open := slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Bits() == 0 })
		switch exposed := base.ClusterIP.IsValid() && len(base.LoadBalancerIPs) > 0; {
		case len(ranges) > 0 && !open:
			base.LoadBalancerSourceRanges = ranges
		case !exposed:
		case unreadable && !open:
			// The invalid range may be of this family, and its author meant to keep others out.
			s.skips.add(ReasonUnreadableGuard, "status.loadBalancer.ingress", family.String(), errUnreadableGuard)
			base.LoadBalancerIPs = nil
		default:
			s.unguarded = append(s.unguarded, family)
		}
	}
}

// noteUnguarded counts the Services with a family that their source ranges do not guard. It logs each Service once, and
// again when another family becomes open. Either Service may be nil.
func (t *Tracker) noteUnguarded(name objectName, old, now *service) {
	var before, after []model.Family
	if old != nil {
		before = old.unguarded
	}
	if now != nil {
		after = now.unguarded
	}
	if len(before) > 0 {
		t.counts.UnguardedServices--
	}
	if len(after) > 0 {
		t.counts.UnguardedServices++
	}
	if !slices.ContainsFunc(after, func(f model.Family) bool { return !slices.Contains(before, f) }) {
		return
	}
	var names []string
	for _, family := range after {
		names = append(names, family.String())
	}
	t.options.Logger.Info("Everybody may dial load balancer IPs of the Service: loadBalancerSourceRanges has no range of their family, or one of length 0",
		"service", klog.KRef(name.namespace, name.name), "families", names)
	if t.options.OnUnguarded != nil {
		t.options.OnUnguarded(name.namespace, name.name, after)
	}
}
