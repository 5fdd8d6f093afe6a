package v1alpha2

import (
	"fmt"
	"strings"

	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/ptr"
)

// Loss is a setting that the other format cannot express.
type Loss struct {
	// Field is its path in the document that was converted. Reason says why it is lost, and what holds instead.
	Field, Reason string
}

// String returns the loss as one line.
func (l Loss) String() string { return fmt.Sprintf("%s: %s", l.Field, l.Reason) }

type losses []Loss

func (l *losses) add(field, format string, args ...any) {
	*l = append(*l, Loss{Field: field, Reason: fmt.Sprintf(format, args...)})
}

// ToV1alpha1 converts a v1alpha2 document, without defaults filled in. Losses are ipFamilyPolicy, configHardFail unless
// it is false, a second nodeIPOverride, the masqueradeBit of iptables or ipvs where they differ, linux.leftovers and
// linux.leftoversDrainTimeout unless they have the default, and nodeLocal.
func ToV1alpha1(in *KubeProxyConfiguration) (*kubeproxyv1alpha1.KubeProxyConfiguration, []Loss) {
	common, out := *in, &kubeproxyv1alpha1.KubeProxyConfiguration{}
	common.ClientConnection.QPS = 0 // the flag accepts an infinite one, which JSON does not have
	copyCommon(common, out)
	copyCommon(in.Linux.Conntrack, &out.Conntrack)
	out.SetGroupVersionKind(kubeproxyv1alpha1.SchemeGroupVersion.WithKind(Kind))
	out.ClientConnection.QPS = in.ClientConnection.QPS
	out.BindAddressHardFail = ptr.Deref(in.BindAddressHardFail, true)
	out.ClusterCIDR = strings.Join(in.DetectLocal.ClusterCIDRs, ",")
	copyCommon(in.Linux.OOMScoreAdj, &out.OOMScoreAdj)
	out.WindowsRunAsService = in.Windows.RunAsService
	var lost losses
	lost.modesToV1alpha1(in, out)
	lost.nodeIPsToV1alpha1(in, out)
	if ptr.Deref(in.ConfigHardFail, true) {
		lost.add("configHardFail", "a proxy that reads v1alpha1 only warns about unknown fields")
	}
	if in.Linux.Leftovers != "" && in.Linux.Leftovers != LeftoversRemove {
		lost.add("linux.leftovers", "v1alpha1 has no such field; this project's kube-proxy has the flag --leftovers")
	}
	if t := in.Linux.LeftoversDrainTimeout; t != nil && t.Duration != defaultDrainTimeout {
		lost.add("linux.leftoversDrainTimeout",
			"v1alpha1 has no such field; this project's kube-proxy has the flag --leftovers-drain-timeout")
	}
	lost.nodeLocalToV1alpha1(ptr.Deref(in.NodeLocal, NodeLocalConfiguration{}))
	return out, lost
}

func (l *losses) modesToV1alpha1(in *KubeProxyConfiguration, out *kubeproxyv1alpha1.KubeProxyConfiguration) {
	setDefault(&out.IPTables.LocalhostNodePorts, ptr.To(false))
	for _, s := range sections(out) {
		*s.syncPeriod, *s.minSyncPeriod = in.SyncPeriod, in.MinSyncPeriod
		if s.masqueradeAll != nil {
			*s.masqueradeAll = in.Linux.MasqueradeAll
		}
	}
	kept, lost := in.IPTables.MasqueradeBit, in.IPVS.MasqueradeBit
	keptField, lostField := "iptables.masqueradeBit", "ipvs.masqueradeBit"
	if in.Mode == ModeIPVS {
		kept, lost = lost, kept
		keptField, lostField = lostField, keptField
	}
	copyCommon(kept, &out.IPTables.MasqueradeBit)
	if ptr.Deref(kept, defaultMasqueradeBit) != ptr.Deref(lost, defaultMasqueradeBit) {
		l.add(lostField, "in v1alpha1 iptables and ipvs have one bit; %s is kept", keptField)
	}
}

func (l *losses) nodeIPsToV1alpha1(in *KubeProxyConfiguration, out *kubeproxyv1alpha1.KubeProxyConfiguration) {
	if len(in.NodeIPOverride) > 0 {
		out.BindAddress = in.NodeIPOverride[0]
	}
	if len(in.NodeIPOverride) > 1 {
		l.add("nodeIPOverride[1]",
			"v1alpha1 has one bindAddress, which is nodeIPOverride[0]; the other family's address is the Node object's")
	}
	if in.IPFamilyPolicy != "" {
		l.add("ipFamilyPolicy", "v1alpha1 has no such field; the node's addresses are taken as under PreferDualStack")
	}
}

func (l *losses) nodeLocalToV1alpha1(in NodeLocalConfiguration) {
	for _, f := range []struct {
		set         bool
		field, flag string
	}{
		{in.Serve != "", "serve", "serve-node-local"},
		{in.Source != "", "source", "node-local-source"},
		{in.CertFile != "", "certFile", "node-local-cert-file"},
		{in.KeyFile != "", "keyFile", "node-local-key-file"},
		{in.CAFile != "", "caFile", "node-local-ca-file"},
		{in.AuthorizeNodeNames != nil, "authorizeNodeNames", "authorize-node-names"},
		{in.Limits.Ports != 0, "limits.ports", "node-local-max-ports"},
		{in.Limits.Addresses != 0, "limits.addresses", "node-local-max-addresses"},
		{in.Limits.Bytes != 0, "limits.bytes", "node-local-max-bytes"},
	} {
		if f.set {
			l.add("nodeLocal."+f.field, "v1alpha1 has no such field; this project's kube-proxy has the flag --%s", f.flag)
		}
	}
}
