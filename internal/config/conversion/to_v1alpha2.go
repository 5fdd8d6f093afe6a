package conversion

import (
	"strings"

	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2/iptables"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2/ipvs"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2/nftables"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2/winkernel"
)

// ToV1alpha2 converts a v1alpha1 document. Losses are portRange, and the syncPeriod,
// minSyncPeriod and masqueradeAll of modes that are not selected, where they differ.
func ToV1alpha2(in *kubeproxyv1alpha1.KubeProxyConfiguration) (*v1alpha2.KubeProxyConfiguration, []Loss) {
	in = in.DeepCopy()
	out := &v1alpha2.KubeProxyConfiguration{
		FeatureGates:                in.FeatureGates,
		ClientConnection:            in.ClientConnection,
		Logging:                     in.Logging,
		HostnameOverride:            in.HostnameOverride,
		HealthzBindAddress:          in.HealthzBindAddress,
		MetricsBindAddress:          in.MetricsBindAddress,
		BindAddressHardFail:         &in.BindAddressHardFail,
		ConfigHardFail:              ptr.To(false), // kube-proxy only warns about v1alpha1
		EnableProfiling:             in.EnableProfiling,
		ShowHiddenMetricsForVersion: in.ShowHiddenMetricsForVersion,
		Mode:                        v1alpha2.Mode(in.Mode),
		Windows:                     v1alpha2.WindowsConfiguration{RunAsService: in.WindowsRunAsService},
		IPTables:                    iptablesToV1alpha2(&in.IPTables),
		IPVS:                        ipvsToV1alpha2(in),
		NFTables:                    nftables.Configuration{MasqueradeBit: in.NFTables.MasqueradeBit},
		Winkernel:                   winkernel.Configuration(in.Winkernel),
		DetectLocalMode:             v1alpha2.LocalMode(in.DetectLocalMode),
		NodePortAddresses:           in.NodePortAddresses,
		ConfigSyncPeriod:            in.ConfigSyncPeriod,
	}
	out.APIVersion, out.Kind = v1alpha2.APIVersion, v1alpha2.Kind
	out.Linux.Conntrack = v1alpha2.ConntrackConfiguration(in.Conntrack)
	out.Linux.OOMScoreAdj = in.OOMScoreAdj
	out.DetectLocal.BridgeInterface = in.DetectLocal.BridgeInterface
	out.DetectLocal.InterfaceNamePrefix = in.DetectLocal.InterfaceNamePrefix
	if in.ClusterCIDR != "" {
		out.DetectLocal.ClusterCIDRs = strings.Split(in.ClusterCIDR, ",")
	}
	if in.BindAddress != "" {
		out.NodeIPOverride = []string{in.BindAddress}
	}
	var lost losses
	lost.mergeSections(in, out)
	if in.PortRange != "" {
		lost.add("portRange", "v1alpha2 has no such field; nothing uses it since the mode userspace is gone")
	}
	return out, lost
}

func iptablesToV1alpha2(in *kubeproxyv1alpha1.KubeProxyIPTablesConfiguration) iptables.Configuration {
	out := iptables.Configuration{MasqueradeBit: in.MasqueradeBit, LocalhostNodePorts: in.LocalhostNodePorts}
	if out.LocalhostNodePorts == nil {
		out.LocalhostNodePorts = ptr.To(true) // the default of v1alpha1
	}
	return out
}

func ipvsToV1alpha2(in *kubeproxyv1alpha1.KubeProxyConfiguration) ipvs.Configuration {
	out := ipvs.Configuration{
		Scheduler:     in.IPVS.Scheduler,
		ExcludeCIDRs:  in.IPVS.ExcludeCIDRs,
		StrictARP:     in.IPVS.StrictARP,
		TCPTimeout:    in.IPVS.TCPTimeout,
		TCPFinTimeout: in.IPVS.TCPFinTimeout,
		UDPTimeout:    in.IPVS.UDPTimeout,
	}
	if bit := in.IPTables.MasqueradeBit; bit != nil {
		out.MasqueradeBit = ptr.To(*bit) // which the mode ipvs uses in v1alpha1
	}
	return out
}
