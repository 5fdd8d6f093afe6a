package tracker

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/model"
)

// node holds the parts of a Node that the Tracker uses.
type node struct {
	model.Node
	zone  string
	skips skipList
	// changed is the revision of the last change that affects a backend or the selection of endpoints.
	changed uint64
	// deleted says that the Node was deleted while a view of it exists.
	deleted bool
}

// ParseNode returns a backend's view of the Node, without invalid parts.
func ParseNode(obj *corev1.Node) model.Node {
	return parseNode(obj).Node
}

func parseNode(obj *corev1.Node) *node {
	n := &node{Node: model.Node{Name: obj.Name, GoingAway: goingAway(obj)}, zone: obj.Labels[corev1.LabelTopologyZone]}
	n.parseIPs(obj.Status.Addresses)
	cidrs := obj.Spec.PodCIDRs
	if len(cidrs) == 0 && obj.Spec.PodCIDR != "" {
		cidrs = []string{obj.Spec.PodCIDR}
	}
	n.PodCIDRs = parsePrefixes(cidrs, "spec.podCIDRs", &n.skips)
	return n
}

// goingAway reports whether the deletion of a Node has begun (KEP-3836), or the cluster autoscaler plans it.
func goingAway(obj *corev1.Node) bool {
	return !obj.DeletionTimestamp.IsZero() ||
		slices.ContainsFunc(obj.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "ToBeDeletedByClusterAutoscaler" })
}

// parseIPs picks the primary address of each family: the first InternalIP, else the
// first ExternalIP, as the kubelet does for the IPs of host-network pods. The family that
// comes first is the node's primary one.
func (n *node) parseIPs(addresses []corev1.NodeAddress) {
	for _, wanted := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i, address := range addresses {
			if address.Type != wanted {
				continue
			}
			addr, err := parseAddr(address.Address)
			if err != nil {
				n.skips.add(ReasonInvalidIP, indexed("status.addresses", i), address.Address, err)
				continue
			}
			known := func(ip netip.Addr) bool { return model.FamilyOf(ip) == model.FamilyOf(addr) }
			if !slices.ContainsFunc(n.IPs, known) {
				n.IPs = append(n.IPs, addr)
			}
		}
	}
}

// serviceCIDR holds the ranges of one ServiceCIDR object.
type serviceCIDR struct {
	ranges []netip.Prefix
	skips  skipList
}

// parsePrefixes returns the valid prefixes as a sorted set, and adds invalid texts to skips.
func parsePrefixes(texts []string, field string, skips *skipList) []netip.Prefix {
	var prefixes []netip.Prefix
	for i, text := range texts {
		if prefix, err := parsePrefix(text); err != nil {
			skips.add(ReasonInvalidIP, indexed(field, i), text, err)
		} else {
			prefixes = append(prefixes, prefix)
		}
	}
	return sortedSet(prefixes, netip.Prefix.Compare)
}
