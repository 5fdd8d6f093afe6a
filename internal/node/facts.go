package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/model"
)

// facts are the required parts of a Node.
type facts struct {
	// ips has at most one address of each family, with overrides, the primary family first.
	ips      []netip.Addr
	podCIDRs []netip.Prefix
	// ipsConfirmed and cidrsConfirmed say that the Node itself has had addresses or CIDRs. Otherwise they are
	// overrides, or from the previous run.
	ipsConfirmed, cidrsConfirmed bool
	// previous says that facts are from the previous run, and the Node has not confirmed them.
	previous bool
	// kept holds the addresses and CIDRs that the Node has lost and that stay in force.
	kept string
}

// next returns the facts after the Node has changed to said, with overrides. Facts that the Node has lost stay: an
// external cloud provider, or a new registration, may leave the Node without addresses for a while, and the machine
// still has them.
func (f facts) next(said model.Node, o *Options) facts {
	ips := firstOfFamilies(o.overrides(), said.IPs)
	next := facts{
		ips:            keepIPs(f.ips, ips, o),
		podCIDRs:       said.PodCIDRs,
		ipsConfirmed:   f.ipsConfirmed || len(said.IPs) > 0,
		cidrsConfirmed: f.cidrsConfirmed || len(said.PodCIDRs) > 0,
	}
	var kept []string
	if lost := slices.DeleteFunc(slices.Clone(next.ips), func(ip netip.Addr) bool { return slices.Contains(ips, ip) }); len(lost) > 0 {
		kept = append(kept, text(lost))
	}
	if o.NodeCIDR && !hasNew(f.podCIDRs, said.PodCIDRs) && len(said.PodCIDRs) < len(f.podCIDRs) {
		next.podCIDRs = f.podCIDRs
		kept = append(kept, text(f.podCIDRs))
	}
	next.kept = strings.Join(kept, ", ")
	next.previous = f.previous && next.kept != ""
	return next
}

// keepIPs keeps the old address of each family that the Node no longer has. While an address is missing, the families
// keep their order, so that the primary family stays. The family of an override is always the primary family.
func keepIPs(had, said []netip.Addr, o *Options) []netip.Addr {
	kept := firstOfFamilies(said, had)
	if len(kept) == len(said) || len(o.overrides()) > 0 {
		return kept
	}
	kept = firstOfFamilies(had, said)
	for i, ip := range kept {
		if at := ofFamily(said, ip); at >= 0 {
			kept[i] = said[at]
		}
	}
	return kept
}

// firstOfFamilies returns the first address of each family among the lists.
func firstOfFamilies(lists ...[]netip.Addr) (first []netip.Addr) {
	for _, ip := range slices.Concat(lists...) {
		if ofFamily(first, ip) < 0 {
			first = append(first, ip)
		}
	}
	return first
}

// ofFamily returns the index of an address of ip's family in list, or -1.
func ofFamily(list []netip.Addr, ip netip.Addr) int {
	return slices.IndexFunc(list, func(other netip.Addr) bool { return model.FamilyOf(other) == model.FamilyOf(ip) })
}

// text returns a list for people.
func text[T netip.Addr | netip.Prefix](list []T) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", ", ")
}
