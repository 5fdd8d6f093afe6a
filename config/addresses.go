package config

import (
	"net/netip"

	netutils "k8s.io/utils/net"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/config/v1alpha2"
)

// nodePortAddresses resolves the keywords.
func nodePortAddresses(list []string) (out compiler.NodePortAddresses) {
	for _, address := range list {
		switch address {
		case v1alpha2.NodePortAddressesPrimary:
			out.Primary = true
		case v1alpha2.NodePortAddressesLocalhost:
			out.CIDRs = append(out.CIDRs, parseCIDRs([]string{"127.0.0.0/8", "::1/128"})...)
		case v1alpha2.NodePortAddressesAll:
			out.CIDRs = append(out.CIDRs, parseCIDRs([]string{"0.0.0.0/0", "::/0"})...)
		default:
			out.CIDRs = append(out.CIDRs, parseCIDRs([]string{address})...)
		}
	}
	return out
}

// LoopbackNodePorts returns the loopback addresses on which node ports shall answer: what
// nodePortAddresses names of them, unless the gate LocalhostNodePorts is off. A prefix such as
// 0.0.0.0/0 that only contains loopback does not name it.
func LoopbackNodePorts(c *v1alpha2.KubeProxyConfiguration) (out []netip.Prefix) {
	gates, _, _ := FeatureGates(c.FeatureGates)
	if !gates.Enabled(LocalhostNodePorts) {
		return nil
	}
	for _, prefix := range nodePortAddresses(c.NodePortAddresses).CIDRs {
		if prefix.Addr().IsLoopback() {
			out = append(out, prefix)
		}
	}
	return out
}

// parseCIDRs parses valid CIDRs. As everywhere in kube-proxy's configuration, numbers of an
// IPv4 address may have leading zeros, which netip refuses.
func parseCIDRs(list []string) (out []netip.Prefix) {
	for _, s := range list {
		if _, n, err := netutils.ParseCIDRSloppy(s); err == nil {
			address, _ := netip.AddrFromSlice(n.IP)
			ones, _ := n.Mask.Size()
			out = append(out, netip.PrefixFrom(address, ones))
		}
	}
	return out
}

// NodeIPOverride returns the addresses to use instead of the Node object's. Unspecified ones,
// which override nothing, are left out.
func NodeIPOverride(c *v1alpha2.KubeProxyConfiguration) (out []netip.Addr) {
	for _, s := range c.NodeIPOverride {
		ip := netutils.ParseIPSloppy(s)
		if v4 := ip.To4(); v4 != nil {
			ip = v4
		}
		if address, ok := netip.AddrFromSlice(ip); ok && !address.IsUnspecified() {
			out = append(out, address)
		}
	}
	return out
}
