package v1alpha2

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/ptr"
)

// FromV1alpha1 converts a v1alpha1 document, without defaults filled in. Where v1alpha2 has another default, the result
// has v1alpha1's. Losses are portRange, and the settings of modes that are not selected, where they differ.
func FromV1alpha1(in *kubeproxyv1alpha1.KubeProxyConfiguration) (*KubeProxyConfiguration, []Loss) {
	out := &KubeProxyConfiguration{}
	copyCommon(in, out)
	copyCommon(in.Conntrack, &out.Linux.Conntrack)
	out.APIVersion, out.Kind = APIVersion, Kind
	out.ConfigHardFail = ptr.To(false) // kube-proxy only warns about v1alpha1
	copyCommon(in.OOMScoreAdj, &out.Linux.OOMScoreAdj)
	out.Windows.RunAsService = in.WindowsRunAsService
	setDefault(&out.IPTables.LocalhostNodePorts, ptr.To(true))
	copyCommon(in.IPTables.MasqueradeBit, &out.IPVS.MasqueradeBit) // in v1alpha1 the mode ipvs uses this one
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

// copyCommon copies a value, of a document the fields that both versions have at the same path.
func copyCommon(from, to any) {
	data, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(data, to)
	}
	if err != nil {
		panic(err) // a field has different types in the two versions
	}
}

// section holds settings that several modes' sections of v1alpha1 have each, and v1alpha2 has once.
type section struct {
	name                      string
	syncPeriod, minSyncPeriod *metav1.Duration
	// masqueradeAll is nil for ipvs, which uses that of iptables.
	masqueradeAll *bool
}

func sections(c *kubeproxyv1alpha1.KubeProxyConfiguration) []section {
	return []section{
		{"iptables", &c.IPTables.SyncPeriod, &c.IPTables.MinSyncPeriod, &c.IPTables.MasqueradeAll},
		{"ipvs", &c.IPVS.SyncPeriod, &c.IPVS.MinSyncPeriod, nil},
		{"nftables", &c.NFTables.SyncPeriod, &c.NFTables.MinSyncPeriod, &c.NFTables.MasqueradeAll},
	}
}

// selected returns the names of the sections whose periods, and whose masqueradeAll, a mode uses.
func selected(mode Mode) (periods, masqueradeAll string) {
	switch mode {
	case "", ModeNFTables:
		return "nftables", "nftables"
	case ModeIPVS:
		return "ipvs", "iptables"
	}
	return "iptables", "iptables"
}

// mergeSections keeps the settings of the selected mode's section. Another one that is not zero and differs is lost.
func (l *losses) mergeSections(in *kubeproxyv1alpha1.KubeProxyConfiguration, out *KubeProxyConfiguration) {
	periods, masqueradeAll := selected(out.Mode)
	for _, s := range sections(in) {
		if s.name == periods {
			out.SyncPeriod, out.MinSyncPeriod = *s.syncPeriod, *s.minSyncPeriod
		}
		if s.name == masqueradeAll {
			out.Linux.MasqueradeAll = *s.masqueradeAll
		}
	}
	loseIf := func(differs bool, section, field, kept string) {
		if differs {
			l.add(section+"."+field, "v1alpha2 has one for all modes; that of %s.%s is kept, the selected mode's", kept, field)
		}
	}
	differ := func(value, kept metav1.Duration) bool { return value.Duration != 0 && value != kept }
	for _, s := range sections(in) {
		loseIf(differ(*s.syncPeriod, out.SyncPeriod), s.name, "syncPeriod", periods)
		loseIf(differ(*s.minSyncPeriod, out.MinSyncPeriod), s.name, "minSyncPeriod", periods)
		loseIf(ptr.Deref(s.masqueradeAll, false) && !out.Linux.MasqueradeAll, s.name, "masqueradeAll", masqueradeAll)
	}
}
