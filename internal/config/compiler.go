package config

import (
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
)

// Compiler returns the part of a valid configuration that shapes the ruleset. It fails when the
// mode is not one that this proxy has.
func Compiler(c *v1alpha2.KubeProxyConfiguration) (compiler.Config, error) {
	if err := CheckMode(c.Mode, nil); err != nil {
		return compiler.Config{}, err
	}
	gates, _, _ := FeatureGates(c.FeatureGates)
	out := compiler.Config{
		MasqueradeBit:     uint8(*c.NFTables.MasqueradeBit),
		MasqueradeAll:     c.Linux.MasqueradeAll,
		DetectLocal:       detectLocal(c),
		NodePortAddresses: nodePortAddresses(c.NodePortAddresses),
		AffinityHash:      gates.Enabled(AffinityHash),
		OwnTables:         gates.Enabled(OwnTables),
		CountServices:     gates.Enabled(ServiceCounters),
	}
	return out, out.Validate()
}

func detectLocal(c *v1alpha2.KubeProxyConfiguration) (out compiler.DetectLocal) {
	switch c.DetectLocalMode {
	case v1alpha2.LocalModeClusterCIDR:
		out.CIDRs = parseCIDRs(c.DetectLocal.ClusterCIDRs)
	case v1alpha2.LocalModeNodeCIDR:
		out.NodePodCIDRs = true
	case v1alpha2.LocalModeBridgeInterface:
		out.Interface = c.DetectLocal.BridgeInterface
	case v1alpha2.LocalModeInterfaceNamePrefix:
		out.Interface = c.DetectLocal.InterfaceNamePrefix + "*"
	}
	return out
}
