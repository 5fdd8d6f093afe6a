package node

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

// facts are the parts of a Node that count.
type facts struct {
	// ips is its address of each family, overridden ones in place, that of the primary family first.
	ips      []netip.Addr
	podCIDRs []netip.Prefix
	// ipsConfirmed and cidrsConfirmed say that the Node itself has named some. Otherwise they are
	// overrides, or from the previous run.
	ipsConfirmed, cidrsConfirmed bool
	// previous says that some are from the previous run, and the Node has not confirmed them yet.
	previous bool
	// kept names the addresses and CIDRs that the Node once had and does not have now.
	kept string
}

// factsOf returns the facts of a Node object, with overrides.
func (o *Options) factsOf(obj *corev1.Node) facts {
	own := tracker.ParseNode(obj)
	with := *obj
	with.Status.Addresses = append(internalIPs(o.overrides()), obj.Status.Addresses...)
	return facts{
		ips:            tracker.ParseNode(&with).IPs,
		podCIDRs:       own.PodCIDRs,
		ipsConfirmed:   len(own.IPs) > 0,
		cidrsConfirmed: len(own.PodCIDRs) > 0,
	}
}

// next returns the facts after the Node has changed to said. Facts that the Node no longer has stay: an
// external cloud provider, or a Node that registers anew, may leave it without addresses for a while, and
// the machine has them nevertheless.
func (f facts) next(said facts, o *Options) facts {
	next := facts{
		podCIDRs:       said.podCIDRs,
		ipsConfirmed:   f.ipsConfirmed || said.ipsConfirmed,
		cidrsConfirmed: f.cidrsConfirmed || said.cidrsConfirmed,
	}
	var kept []string
	next.ips = keepIPs(f.ips, said.ips, o)
	if lost := slices.DeleteFunc(slices.Clone(next.ips), func(ip netip.Addr) bool { return slices.Contains(said.ips, ip) }); len(lost) > 0 {
		kept = append(kept, text(lost))
	}
	if o.NodeCIDR && !hasNew(f.podCIDRs, said.podCIDRs) && len(said.podCIDRs) < len(f.podCIDRs) {
		next.podCIDRs = f.podCIDRs
		kept = append(kept, text(f.podCIDRs))
	}
	next.kept = strings.Join(kept, ", ")
	next.previous = f.previous && next.kept != ""
	return next
}

// keepIPs returns said, with the addresses of had for the families that it lacks. As long as it lacks
// one, the families keep their order, so that the primary one stays what it is; that of an override is
// always the primary one.
func keepIPs(had, said []netip.Addr, o *Options) []netip.Addr {
	lost := slices.DeleteFunc(slices.Clone(had), func(ip netip.Addr) bool { return ofFamily(said, ip) >= 0 })
	if len(lost) == 0 || len(o.overrides()) > 0 {
		return append(slices.Clip(said), lost...)
	}
	kept := slices.Clone(had)
	for _, ip := range said {
		if i := ofFamily(kept, ip); i >= 0 {
			kept[i] = ip
		} else {
			kept = append(kept, ip)
		}
	}
	return kept
}

// ofFamily returns where list has an address of ip's family, or -1.
func ofFamily(list []netip.Addr, ip netip.Addr) int {
	return slices.IndexFunc(list, func(other netip.Addr) bool { return model.FamilyOf(other) == model.FamilyOf(ip) })
}

// counted returns the addresses of a node that count under the family policy.
func (o *Options) counted(ips []netip.Addr) []netip.Addr {
	if o.FamilyPolicy == corev1.IPFamilyPolicySingleStack && len(ips) > 1 {
		return ips[:1]
	}
	return ips
}

// applyTo returns the Node with the facts in place of its own. The tracker takes the first address of
// each family.
func (f facts) applyTo(obj *corev1.Node, o *Options) *corev1.Node {
	out := *obj
	counted := o.counted(f.ips)
	if !slices.Equal(counted, tracker.ParseNode(obj).IPs) {
		out.Status.Addresses = internalIPs(counted)
		for _, address := range obj.Status.Addresses {
			if _, err := netip.ParseAddr(address.Address); err != nil {
				out.Status.Addresses = append(out.Status.Addresses, address) // for the tracker to complain about
			}
		}
	}
	if o.NodeCIDR {
		out.Spec.PodCIDRs = nil
		for _, cidr := range f.podCIDRs {
			out.Spec.PodCIDRs = append(out.Spec.PodCIDRs, cidr.String())
		}
	}
	return &out
}

func internalIPs(ips []netip.Addr) (out []corev1.NodeAddress) {
	for _, ip := range ips {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	return out
}
