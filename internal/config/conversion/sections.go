package conversion

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
)

// section is what several modes' sections of v1alpha1 have each, and v1alpha2 has once.
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

// selected returns the names of the sections whose periods, and whose masqueradeAll, count in a mode.
func selected(mode v1alpha2.Mode) (periods, masqueradeAll string) {
	switch mode {
	case "", v1alpha2.ModeNFTables:
		return "nftables", "nftables"
	case v1alpha2.ModeIPVS:
		return "ipvs", "iptables"
	}
	return "iptables", "iptables"
}

// mergeSections gives out what the selected mode's section says. A setting of another one is
// lost if it was made (is not zero) and differs.
func (l *losses) mergeSections(in *kubeproxyv1alpha1.KubeProxyConfiguration, out *v1alpha2.KubeProxyConfiguration) {
	periods, masqueradeAll := selected(out.Mode)
	for _, s := range sections(in) {
		if s.name == periods {
			out.SyncPeriod, out.MinSyncPeriod = *s.syncPeriod, *s.minSyncPeriod
		}
		if s.name == masqueradeAll {
			out.Linux.MasqueradeAll = *s.masqueradeAll
		}
	}
	for _, s := range sections(in) {
		l.period(s.name+".syncPeriod", *s.syncPeriod, periods+".syncPeriod", out.SyncPeriod)
		l.period(s.name+".minSyncPeriod", *s.minSyncPeriod, periods+".minSyncPeriod", out.MinSyncPeriod)
		if s.masqueradeAll != nil && *s.masqueradeAll && !out.Linux.MasqueradeAll {
			l.add(s.name+".masqueradeAll", "v1alpha2 has one for all modes; that of %s is kept, the selected mode's", masqueradeAll+".masqueradeAll")
		}
	}
}

func (l *losses) period(field string, value metav1.Duration, keptField string, kept metav1.Duration) {
	if value.Duration != 0 && value != kept {
		l.add(field, "v1alpha2 has one for all modes; that of %s is kept, the selected mode's", keptField)
	}
}

// spreadSections gives every mode's section of v1alpha1 what v1alpha2 has once.
func spreadSections(in *v1alpha2.KubeProxyConfiguration, out *kubeproxyv1alpha1.KubeProxyConfiguration) {
	for _, s := range sections(out) {
		*s.syncPeriod, *s.minSyncPeriod = in.SyncPeriod, in.MinSyncPeriod
		if s.masqueradeAll != nil {
			*s.masqueradeAll = in.Linux.MasqueradeAll
		}
	}
}
