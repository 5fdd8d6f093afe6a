package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/sysctl"
)

// DefaultWait is the time that kube-proxy v1.37 waits for its Node's addresses when it starts.
const DefaultWait = 30 * time.Second

// Options selects the required facts of the Node. The zero value waits for nothing.
type Options struct {
	// NodeName is the name of the Node that the proxy runs on. Other Nodes pass unchanged.
	NodeName string
	// Override replaces the Node's address of the same IP family (bindAddress, or nodeIPOverride). The first one's
	// family is the node's primary one. 0.0.0.0, :: and loopback addresses override nothing.
	Override []netip.Addr
	// FamilyPolicy selects the IP families to serve: SingleStack the primary family, PreferDualStack (also empty) the
	// families of the Node's addresses, RequireDualStack both, or the proxy ends.
	FamilyPolicy corev1.IPFamilyPolicy
	// NodeCIDR says that the Node's pod CIDRs are required (detectLocalMode NodeCIDR).
	NodeCIDR bool
	// Wait bounds the wait for the Node and its required facts. Then the log names the missing facts.
	Wait time.Duration
	// PreviousNode, if set, reads the Node of the previous run from the kernel's rules. It is called if the Node lacks
	// facts at the start. It may block.
	PreviousNode func() (model.Node, error)
	// OnMissing, if set, is called with the missing facts at the start, and when they change. It must not block.
	OnMissing func(Missing)
	// Kernel says whether the kernel has IPv6.
	Kernel sysctl.Tree
}

// Missing holds the required Node facts that are still unknown. The zero value means that all are known.
type Missing struct {
	// Node says that no Node of the proxy's name has appeared.
	Node bool
	// Addresses says that the Node has no address, or under RequireDualStack not both.
	Addresses bool
	// PodCIDRs says that the Node has no pod CIDR, which Options.NodeCIDR requires.
	PodCIDRs bool
	// Waiting says that the proxy still waits (Options.Wait), and that load balancers should send this node no traffic.
	Waiting bool
}

func (m Missing) any() bool { return m.Node || m.Addresses || m.PodCIDRs }

// String returns the missing parts, separated by commas.
func (m Missing) String() string {
	var parts []string
	if m.Node {
		parts = append(parts, "the Node")
	}
	if m.Addresses {
		parts = append(parts, "addresses")
	}
	if m.PodCIDRs {
		parts = append(parts, "pod CIDRs")
	}
	return strings.Join(parts, ", ")
}

// overrides returns Override without unspecified and loopback addresses.
func (o *Options) overrides() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(o.Override), func(addr netip.Addr) bool { return addr.IsUnspecified() || addr.IsLoopback() })
}

func (o *Options) requireDual() bool { return o.FamilyPolicy == corev1.IPFamilyPolicyRequireDualStack }

// checkFamilies returns an error if the proxy cannot serve the required families: the family of ips[0], and under
// RequireDualStack both.
func (o *Options) checkFamilies(ips []netip.Addr) error {
	dual := o.requireDual()
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

// counted returns the addresses of the families to serve.
func (o *Options) counted(ips []netip.Addr) []netip.Addr {
	if o.FamilyPolicy == corev1.IPFamilyPolicySingleStack && len(ips) > 1 {
		return ips[:1]
	}
	return ips
}
