package node

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/sysctl"
	"github.com/nftproxy/nftproxy/tracker"
)

// How long kube-proxy v1.37 waits for its Node when it starts.
const (
	// DefaultIPWait is how long the Node may take to exist and have addresses.
	DefaultIPWait = 30 * time.Second
	// DefaultPodCIDRWait is how long the Node may take to be given a pod CIDR.
	DefaultPodCIDRWait = 5 * time.Minute
)

// Options says what of the Node counts. The zero value waits for nothing.
type Options struct {
	// NodeName is the name of the Node that the proxy runs on. Other Nodes are passed on.
	NodeName string
	// Override is used instead of the Node's addresses, each for its IP family, the first
	// one's being the node's primary family (bindAddress, or nodeIPOverride). 0.0.0.0, :: and
	// loopback addresses override nothing: no node port can be reached there.
	Override []netip.Addr
	// FamilyPolicy says of how many families the Node's addresses count: SingleStack of the
	// primary one, PreferDualStack (also empty) of both if there are, RequireDualStack of
	// both, without which the proxy ends.
	FamilyPolicy corev1.IPFamilyPolicy
	// NodeCIDR says that the Node's pod CIDRs count (detectLocalMode NodeCIDR).
	NodeCIDR bool
	// IPWait is how long to wait for addresses before going on without.
	IPWait time.Duration
	// PodCIDRWait is how long to wait for pod CIDRs, if they count, before the proxy ends.
	PodCIDRWait time.Duration
	// Kernel is where to see whether the kernel has IPv6.
	Kernel sysctl.Tree
}

// effective returns the Node as if the addresses that count were all that it has. The
// tracker takes the first of each family.
func (o *Options) effective(obj *corev1.Node) *corev1.Node {
	effective := *obj
	effective.Status.Addresses = append(o.overrides(), obj.Status.Addresses...)
	ips := tracker.ParseNode(&effective).IPs
	if o.FamilyPolicy != corev1.IPFamilyPolicySingleStack || len(ips) < 2 {
		return &effective
	}
	effective.Status.Addresses = slices.DeleteFunc(effective.Status.Addresses, func(a corev1.NodeAddress) bool {
		addr, err := netip.ParseAddr(a.Address)
		return err == nil && model.FamilyOf(addr) != model.FamilyOf(ips[0])
	})
	return &effective
}

func (o *Options) overrides() []corev1.NodeAddress {
	var addresses []corev1.NodeAddress
	for _, addr := range o.Override {
		if !addr.IsUnspecified() && !addr.IsLoopback() {
			addresses = append(addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: addr.String()})
		}
	}
	return addresses
}

// wantedIPs returns how many addresses are worth waiting for.
func (o *Options) wantedIPs() int {
	if o.FamilyPolicy == corev1.IPFamilyPolicyRequireDualStack {
		return 2
	}
	return 1
}

// checkFamilies returns an error if the proxy cannot serve the families that it has to: that of
// ips[0], and under RequireDualStack both.
func (o *Options) checkFamilies(ips []netip.Addr) error {
	dual := o.FamilyPolicy == corev1.IPFamilyPolicyRequireDualStack
	if dual && len(ips) < 2 {
		return fmt.Errorf("node %s: ipFamilyPolicy is RequireDualStack, but the Node has %s; give it an address of each family in status.addresses (the kubelet's --node-ip), or set nodeIPOverride", o.NodeName, text(ips))
	}
	for i, ip := range ips {
		if ip.Is6() && (i == 0 || dual) && !o.Kernel.HasIPv6() {
			return fmt.Errorf("node %s: its address %s is needed, but IPv6 is disabled on this machine (sysctl net.ipv6.conf.all.disable_ipv6, kernel parameter ipv6.disable)", o.NodeName, ip)
		}
	}
	return nil
}
