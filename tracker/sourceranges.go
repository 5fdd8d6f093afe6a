package tracker

import (
	"errors"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/model"
)

var errUnreadableGuard = errors.New("not served: loadBalancerSourceRanges holds a range that cannot be read, and none of this family")

// parseSourceRanges sorts loadBalancerSourceRanges by family. As in kube-proxy, a family
// without ranges is not guarded, nor is one with a range of length 0. The load balancer IPs
// must be in addrs already.
func (s *service) parseSourceRanges(texts []string, addrs *bothFamilies) {
	skips := len(s.skips)
	prefixes := parsePrefixes(texts, "spec.loadBalancerSourceRanges", &s.skips)
	unreadable := len(s.skips) > skips
	for _, prefix := range prefixes {
		a := addrs.of(model.FamilyOf(prefix.Addr()))
		a.sourceRanges = append(a.sourceRanges, prefix)
	}
	for _, family := range model.Families {
		a := addrs.of(family)
		named := len(a.sourceRanges) > 0
		if slices.ContainsFunc(a.sourceRanges, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
			a.sourceRanges = nil
		}
		exposed := a.clusterIP.IsValid() && len(a.loadBalancerIPs) > 0
		if len(texts) == 0 || !exposed || len(a.sourceRanges) > 0 {
			continue
		}
		if unreadable && !named {
			// The invalid range may be of this family, and its author meant to keep others out.
			s.skips.add(ReasonUnreadableGuard, "status.loadBalancer.ingress", family.String(), errUnreadableGuard)
			a.loadBalancerIPs = nil
			continue
		}
		s.unguarded = append(s.unguarded, family)
	}
}

// noteUnguarded counts the Services with a family that their source ranges do not guard. It logs each
// once, and again when another family of it becomes open. Either Service may be nil.
func (t *Tracker) noteUnguarded(name objectName, old, now *service) {
	before, after := old.open(), now.open()
	if len(before) > 0 {
		t.counts.UnguardedServices--
	}
	if len(after) > 0 {
		t.counts.UnguardedServices++
	}
	if !slices.ContainsFunc(after, func(f model.Family) bool { return !slices.Contains(before, f) }) {
		return
	}
	t.options.Logger.Info("Everybody may dial load balancer IPs of the Service: loadBalancerSourceRanges has no range of their family, or one of length 0",
		"service", klog.KRef(name.namespace, name.name), "families", familyNames(after))
	if t.options.OnUnguarded != nil {
		t.options.OnUnguarded(name.namespace, name.name, after)
	}
}

// open returns unguarded; nil if there is no Service.
func (s *service) open() []model.Family {
	if s == nil {
		return nil
	}
	return s.unguarded
}

func familyNames(families []model.Family) (names []string) {
	for _, family := range families {
		names = append(names, family.String())
	}
	return names
}
