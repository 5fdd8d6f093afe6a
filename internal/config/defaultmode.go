package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
)

// kubeadmKubeconfig is the path that kubeadm writes into its ConfigMap kube-proxy.
const kubeadmKubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"

// resolveMode decides what a v1alpha1 document runs as that chose no mode, and returns the
// names of its fields. To kube-proxy such a document means the mode iptables, so what it
// wants is in the section iptables; it shall want the same here.
func (f *File) resolveMode(c *kubeproxyv1alpha1.KubeProxyConfiguration) Names {
	if chosenByKubeadm(c) {
		f.Warnings = append(f.Warnings, `mode: running as nftables; kubeadm v1.37 writes "iptables" where nobody chose a mode, set it to nftables to make this explicit`)
		c.Mode = ""
	}
	names := v1alpha1Names(v1alpha2.Mode(c.Mode))
	if c.Mode != "" {
		return names
	}
	from, to := &c.IPTables, &c.NFTables
	if to.MasqueradeBit == nil && from.MasqueradeBit != nil {
		to.MasqueradeBit = from.MasqueradeBit
		names["nftables.masqueradeBit"] = "iptables.masqueradeBit"
	}
	if from.MasqueradeAll {
		to.MasqueradeAll = true
		names["linux.masqueradeAll"] = "iptables.masqueradeAll"
	}
	// Together: kube-proxy has checked that these two fit each other.
	unset := metav1.Duration{}
	if to.SyncPeriod == unset && to.MinSyncPeriod == unset {
		to.SyncPeriod, to.MinSyncPeriod = from.SyncPeriod, from.MinSyncPeriod
		names["syncPeriod"], names["minSyncPeriod"] = "iptables.syncPeriod", "iptables.minSyncPeriod"
	}
	return names
}

// chosenByKubeadm reports whether a document's mode is kubeadm's choice and nobody else's: since
// v1.37 kubeadm writes out the mode that kube-proxy has by default.
func chosenByKubeadm(c *kubeproxyv1alpha1.KubeProxyConfiguration) bool {
	return v1alpha2.Mode(c.Mode) == v1alpha2.ModeIPTables &&
		c.ClientConnection.Kubeconfig == kubeadmKubeconfig &&
		c.IPTables == kubeproxyv1alpha1.KubeProxyIPTablesConfiguration{}
}
