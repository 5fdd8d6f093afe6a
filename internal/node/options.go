package node

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/sysctl"
)

// DefaultWait is how long kube-proxy v1.37 waits for its Node's addresses when it starts.
const DefaultWait = 30 * time.Second

// Options selects the facts of the Node that count. The zero value waits for nothing.
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
	// Wait is how long the Node may take to exist and to have the facts that count. Then the log names
	// the missing ones. Meanwhile Services are served with the known facts.
	Wait time.Duration
	// PreviousNode, if set, returns the Node of the previous run, as far as the kernel's rules tell it. It is
	// called if the Node lacks facts at the start. It may block.
	PreviousNode func() (model.Node, error)
	// OnMissing, if set, is called with the missing facts once they are known, and whenever they change. It
	// must not block.
	OnMissing func(Missing)
	// Kernel tells whether the kernel has IPv6.
	Kernel sysctl.Tree
}

// overrides returns those of Override that override something.
func (o *Options) overrides() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(o.Override), func(addr netip.Addr) bool { return addr.IsUnspecified() || addr.IsLoopback() })
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
