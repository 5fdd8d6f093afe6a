package config

import (
	"fmt"
	"net/netip"
	"slices"

	netutils "k8s.io/utils/net"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

// Compiler returns the part of a valid configuration that shapes the ruleset. It refuses other modes than nftables.
func Compiler(c *v1alpha2.KubeProxyConfiguration) (compiler.Config, error) {
	if err := CheckMode(c.Mode, nil); err != nil {
		return compiler.Config{}, err
	}
	gates, _, _ := FeatureGates(c.FeatureGates)
	out := compiler.Config{
		MasqueradeBit:     uint8(*c.NFTables.MasqueradeBit),
		MasqueradeAll:     c.Linux.MasqueradeAll,
		DetectLocal:       DetectLocal(c),
		NodePortAddresses: nodePortAddresses(c.NodePortAddresses),
		AffinityHash:      gates.Enabled(AffinityHash),
		OwnTables:         gates.Enabled(OwnTables),
		CountServices:     gates.Enabled(ServiceCounters),
		CountRefused:      gates.Enabled(RefusedCounters) || gates.Enabled(ServiceCounters),
		DirectReturn:      gates.Enabled(DirectReturn),
	}
	return out, out.Validate()
}

// DetectLocal returns by what the proxy tells the cluster's own clients from others.
func DetectLocal(c *v1alpha2.KubeProxyConfiguration) (out compiler.DetectLocal) {
	switch c.DetectLocalMode {
	case v1alpha2.LocalModeClusterCIDR:
		out.CIDRs = ParseCIDRs(c.DetectLocal.ClusterCIDRs)
	case v1alpha2.LocalModeNodeCIDR:
		out.NodePodCIDRs = true
	case v1alpha2.LocalModeBridgeInterface:
		out.Interface = c.DetectLocal.BridgeInterface
	case v1alpha2.LocalModeInterfaceNamePrefix:
		out.Interface = c.DetectLocal.InterfaceNamePrefix + "*"
	}
	return out
}

// Tracker returns the tracker's options. The caller adds the name of the node, and the callbacks.
func Tracker(c *v1alpha2.KubeProxyConfiguration) tracker.Options {
	gates, _, _ := FeatureGates(c.FeatureGates)
	return tracker.Options{IgnoreExternalIPs: !gates.Enabled(AllowServiceExternalIPs), DirectReturn: gates.Enabled(DirectReturn)}
}

// everywhere holds each family's range of all addresses.
var everywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// nodePortAddresses resolves the keywords. As in kube-proxy, node ports of a family that is not named answer everywhere.
func nodePortAddresses(list []string) compiler.NodePortAddresses {
	out := namedNodePortAddresses(list)
	out.CIDRs = append(out.CIDRs, unnamed(out)...)
	return out
}

// openNodePorts returns a warning for each IP family that nodePortAddresses does not name.
func openNodePorts(c *v1alpha2.KubeProxyConfiguration, names Names) (warnings []string) {
	if len(c.NodePortAddresses) == 0 {
		return nil // of a mode that this proxy does not have
	}
	for _, all := range unnamed(namedNodePortAddresses(c.NodePortAddresses)) {
		family := model.FamilyOf(all.Addr())
		warnings = append(warnings, fmt.Sprintf("%s: has no %s address, so %s node ports answer on every address of the node but loopback; add a CIDR or \"primary\" to limit them, or %s to say that this is meant",
			names.nameOf("nodePortAddresses"), family, family, all))
	}
	return warnings
}

// unnamed returns the ranges of all addresses of those families that addresses does not name. The keyword primary names both.
func unnamed(addresses compiler.NodePortAddresses) (out []netip.Prefix) {
	if addresses.Primary {
		return nil
	}
	for _, all := range everywhere {
		named := func(p netip.Prefix) bool { return p.Addr().Is4() == all.Addr().Is4() }
		if !slices.ContainsFunc(addresses.CIDRs, named) {
			out = append(out, all)
		}
	}
	return out
}

func namedNodePortAddresses(list []string) (out compiler.NodePortAddresses) {
	for _, address := range list {
		switch address {
		case v1alpha2.NodePortAddressesPrimary:
			out.Primary = true
		case v1alpha2.NodePortAddressesLocalhost:
			out.CIDRs = append(out.CIDRs, ParseCIDRs([]string{"127.0.0.0/8", "::1/128"})...)
		case v1alpha2.NodePortAddressesAll:
			out.CIDRs = append(out.CIDRs, everywhere...)
		default:
			out.CIDRs = append(out.CIDRs, ParseCIDRs([]string{address})...)
		}
	}
	return out
}

// LoopbackNodePorts returns the prefixes of loopback addresses in nodePortAddresses, unless the gate LocalhostNodePorts is
// off. A prefix such as 0.0.0.0/0, which contains more than loopback, does not count.
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

// ParseCIDRs parses valid CIDRs. As in kube-proxy, IPv4 addresses may have leading zeros, which netip refuses.
func ParseCIDRs(list []string) (out []netip.Prefix) {
	for _, s := range list {
		if _, n, err := netutils.ParseCIDRSloppy(s); err == nil {
			address, _ := netip.AddrFromSlice(n.IP)
			ones, _ := n.Mask.Size()
			out = append(out, netip.PrefixFrom(address, ones))
		}
	}
	return out
}

// NodeIPOverride returns the addresses to use instead of the Node object's, without unspecified ones.
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
