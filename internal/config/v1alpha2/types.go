// Package v1alpha2 is kubeproxy.config.k8s.io/v1alpha2, the configuration format of KEP-784:
// settings are grouped by what they belong to (a platform, a mode, or every proxy), instead
// of by who needed them first. The rest of this module works with it; older formats are
// converted to it. Each mode's section is a package of its own, and none knows another.
package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentbaseconfigv1alpha1 "k8s.io/component-base/config/v1alpha1"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2/iptables"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2/ipvs"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2/nftables"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2/winkernel"
)

// APIVersion and Kind are what a document of this format says it is.
const (
	APIVersion = "kubeproxy.config.k8s.io/v1alpha2"
	Kind       = "KubeProxyConfiguration"
)

// Mode is the name of a proxy mode.
type Mode string

// The modes of kube-proxy. The default is ModeNFTables, which is the only one that this proxy
// has; kube-proxy's own default is ModeIPTables.
const (
	ModeIPTables    Mode = "iptables"
	ModeIPVS        Mode = "ipvs"
	ModeNFTables    Mode = "nftables"
	ModeKernelspace Mode = "kernelspace"
)

// LocalMode says how the cluster's own pods are told from other clients.
type LocalMode string

// The values of detectLocalMode. The default is LocalModeClusterCIDR.
const (
	LocalModeClusterCIDR         LocalMode = "ClusterCIDR"
	LocalModeNodeCIDR            LocalMode = "NodeCIDR"
	LocalModeBridgeInterface     LocalMode = "BridgeInterface"
	LocalModeInterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// IPFamilyPolicy says of which IP families the node has addresses.
type IPFamilyPolicy string

// The values of ipFamilyPolicy. Empty is as PreferDualStack.
const (
	IPFamilyPolicySingleStack      IPFamilyPolicy = "SingleStack"
	IPFamilyPolicyPreferDualStack  IPFamilyPolicy = "PreferDualStack"
	IPFamilyPolicyRequireDualStack IPFamilyPolicy = "RequireDualStack"
)

// The keywords that nodePortAddresses may hold beside CIDRs.
const (
	// NodePortAddressesPrimary stands for the addresses of the Node object, one a family.
	NodePortAddressesPrimary = "primary"
	// NodePortAddressesLocalhost stands for 127.0.0.0/8 and ::1/128.
	NodePortAddressesLocalhost = "localhost"
	// NodePortAddressesAll stands for 0.0.0.0/0 and ::/0.
	NodePortAddressesAll = "all"
)

// KubeProxyConfiguration is a configuration document.
type KubeProxyConfiguration struct {
	metav1.TypeMeta `json:""`

	// FeatureGates turns features on and off by name.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// ClientConnection says how to talk to the API server. Defaults: contentType
	// application/vnd.kubernetes.protobuf, qps 5, burst 10.
	ClientConnection componentbaseconfigv1alpha1.ClientConnectionConfiguration `json:"clientConnection"`
	// Logging is the logging configuration of every Kubernetes component.
	Logging logsapi.LoggingConfiguration `json:"logging,omitempty"`
	// HostnameOverride is the name of the Node; by default the host name.
	HostnameOverride string `json:"hostnameOverride"`
	// NodeIPOverride is used instead of the addresses in the Node object: at most one of each IP
	// family, the first one's being the node's primary family. The unspecified address
	// (0.0.0.0 or ::) overrides nothing; its family is that of the default bind addresses.
	NodeIPOverride []string `json:"nodeIPOverride"`
	// IPFamilyPolicy says which families the node's addresses are taken of: one, both if there
	// are, or both or else the proxy exits. Empty is as PreferDualStack.
	IPFamilyPolicy IPFamilyPolicy `json:"ipFamilyPolicy"`
	// HealthzBindAddress is the IP and port of the health check server. Default 0.0.0.0:10256,
	// or [::]:10256 when nodeIPOverride starts with an IPv6 address. Empty after defaulting
	// means that there is none.
	HealthzBindAddress string `json:"healthzBindAddress"`
	// MetricsBindAddress is the IP and port of the metrics server. Default 127.0.0.1:10249, or
	// [::1]:10249 when nodeIPOverride starts with an IPv6 address. Empty after defaulting means
	// that there is none.
	MetricsBindAddress string `json:"metricsBindAddress"`
	// BindAddressHardFail makes the process exit when it cannot listen on one of the two
	// addresses above; otherwise it logs that and tries again. Default true.
	BindAddressHardFail *bool `json:"bindAddressHardFail"`
	// ConfigHardFail makes unknown and repeated fields errors; otherwise they are ignored with a
	// warning. Default true.
	ConfigHardFail *bool `json:"configHardFail"`
	// EnableProfiling serves /debug/pprof on the metrics address.
	EnableProfiling bool `json:"enableProfiling"`
	// ShowHiddenMetricsForVersion is the minor version ("1.36") since which hidden metrics are
	// shown.
	ShowHiddenMetricsForVersion string `json:"showHiddenMetricsForVersion"`

	// NodeLocal is how this process takes part in the node-local API; by default not at all. KEP-784
	// and kube-proxy do not have this section.
	NodeLocal *NodeLocalConfiguration `json:"nodeLocal,omitempty"`

	// Mode is the proxy mode. Default nftables.
	Mode Mode `json:"mode"`
	// Linux holds what every mode on Linux has.
	Linux LinuxConfiguration `json:"linux"`
	// Windows holds what every mode on Windows has.
	Windows WindowsConfiguration `json:"windows"`
	// IPTables holds the fields of the mode iptables.
	IPTables iptables.Configuration `json:"iptables"`
	// IPVS holds the fields of the mode ipvs.
	IPVS ipvs.Configuration `json:"ipvs"`
	// NFTables holds the fields of the mode nftables.
	NFTables nftables.Configuration `json:"nftables"`
	// Winkernel holds the fields of the mode kernelspace.
	Winkernel winkernel.Configuration `json:"winkernel"`

	// DetectLocalMode says how to tell the cluster's pods from other clients. Default
	// ClusterCIDR.
	DetectLocalMode LocalMode `json:"detectLocalMode"`
	// DetectLocal holds what DetectLocalMode needs.
	DetectLocal DetectLocalConfiguration `json:"detectLocal"`
	// NodePortAddresses says on which of the node's addresses node ports answer: CIDRs and the
	// keywords "primary", "localhost" and "all". Default in mode nftables: primary.
	NodePortAddresses []string `json:"nodePortAddresses"`

	// SyncPeriod is half of how long changes may wait for a successful sync before the proxy
	// counts as unhealthy. Default 30s.
	SyncPeriod metav1.Duration `json:"syncPeriod"`
	// MinSyncPeriod is the least time from one sync to the next. Default 0s, no delay: what
	// changes while one runs is one next sync anyway. (kube-proxy's default is 1s.)
	MinSyncPeriod metav1.Duration `json:"minSyncPeriod"`
	// ConfigSyncPeriod is how often kube-proxy hands out its copy of the API server's objects
	// again. This proxy does not need to. Default 15m.
	ConfigSyncPeriod metav1.Duration `json:"configSyncPeriod"`
}

// NodeLocalConfiguration is the section "nodeLocal". Flags on the command line come before it.
type NodeLocalConfiguration struct {
	// Serve is the address at which to serve the node-local API: unix:///PATH, or tcp://HOST:PORT
	// with the three files below. If it is empty, this process does not serve it.
	Serve string `json:"serve,omitempty"`
	// Source is the address, in the same form, of the server that replaces the API server as the source of
	// Services.
	Source string `json:"source,omitempty"`
	// CertFile has this side's certificate over tcp://, in PEM. It is read for each connection.
	CertFile string `json:"certFile,omitempty"`
	// KeyFile has its key, in PEM. It is read for each connection.
	KeyFile string `json:"keyFile,omitempty"`
	// CAFile has the certificates of the authority that signs the other side's certificates, in PEM. It is read
	// for each connection.
	CAFile string `json:"caFile,omitempty"`
	// AuthorizeNodeNames makes the server at tcp:// tell a client of a node only if its certificate is for
	// system:node:NAME. Default true.
	AuthorizeNodeNames *bool `json:"authorizeNodeNames,omitempty"`
	// Limits bounds what the server at Source can make this process keep.
	Limits NodeLocalLimits `json:"limits,omitzero"`
}

// NodeLocalLimits is the section "nodeLocal.limits". 0 is the default.
type NodeLocalLimits struct {
	// Ports is how many Service ports there may be, in one batch and together. Default 200000.
	Ports int32 `json:"ports,omitempty"`
	// Addresses is how many addresses they may have. Default 3000000.
	Addresses int32 `json:"addresses,omitempty"`
	// Bytes is how long a batch may be. Default 536870912 (512 MiB).
	Bytes int64 `json:"bytes,omitempty"`
}

// LinuxConfiguration is the section "linux".
type LinuxConfiguration struct {
	// Conntrack holds limits of the connection tracking table.
	Conntrack ConntrackConfiguration `json:"conntrack"`
	// MasqueradeAll masquerades all traffic to ClusterIPs.
	MasqueradeAll bool `json:"masqueradeAll"`
	// OOMScoreAdj is the proxy's own oom_score_adj, -1000 to 1000. Default -999.
	OOMScoreAdj *int32 `json:"oomScoreAdj"`
}

// ConntrackConfiguration is the section "linux.conntrack". A timeout of 0 leaves the kernel's.
type ConntrackConfiguration struct {
	// MaxPerCore is how many connections to track for each CPU core; 0 leaves the kernel's
	// limit. Default 32768.
	MaxPerCore *int32 `json:"maxPerCore"`
	// Min is how many connections to track at least, unless MaxPerCore is 0. Default 131072.
	Min *int32 `json:"min"`
	// TCPEstablishedTimeout is how long an idle TCP connection is tracked. Default 24h.
	TCPEstablishedTimeout *metav1.Duration `json:"tcpEstablishedTimeout"`
	// TCPCloseWaitTimeout is how long a connection in CLOSE_WAIT is tracked. Default 1h.
	TCPCloseWaitTimeout *metav1.Duration `json:"tcpCloseWaitTimeout"`
	// TCPBeLiberal makes the kernel take packets outside of the TCP window for valid.
	TCPBeLiberal bool `json:"tcpBeLiberal"`
	// UDPTimeout is how long a UDP flow without answer is tracked.
	UDPTimeout metav1.Duration `json:"udpTimeout"`
	// UDPStreamTimeout is how long a UDP flow with answers is tracked.
	UDPStreamTimeout metav1.Duration `json:"udpStreamTimeout"`
}

// WindowsConfiguration is the section "windows". It is read and converted, and otherwise ignored.
type WindowsConfiguration struct {
	// RunAsService registers the process with the Windows service manager.
	RunAsService bool `json:"runAsService"`
}

// DetectLocalConfiguration is the section "detectLocal".
type DetectLocalConfiguration struct {
	// BridgeInterface is the bridge that pods are connected to (mode BridgeInterface).
	BridgeInterface string `json:"bridgeInterface"`
	// ClusterCIDRs are the ranges of the cluster's pods, at most one a family (mode ClusterCIDR).
	ClusterCIDRs []string `json:"clusterCIDRs"`
	// InterfaceNamePrefix is what the names of pods' interfaces start with (mode
	// InterfaceNamePrefix).
	InterfaceNamePrefix string `json:"interfaceNamePrefix"`
}
