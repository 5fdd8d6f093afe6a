// Package v1alpha2 is kubeproxy.config.k8s.io/v1alpha2, the configuration format of KEP-784, with which the rest of
// this module works. [FromV1alpha1] converts the older format, and [ToV1alpha1] converts back. A setting that the other
// format cannot express is a [Loss].
package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentbaseconfigv1alpha1 "k8s.io/component-base/config/v1alpha1"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// APIVersion and Kind identify a document of this format.
const (
	APIVersion = "kubeproxy.config.k8s.io/v1alpha2"
	Kind       = "KubeProxyConfiguration"
)

// Mode is the name of a proxy mode.
type Mode string

// The modes of kube-proxy. The default is ModeNFTables, the only one that this proxy has.
const (
	ModeIPTables    Mode = "iptables"
	ModeIPVS        Mode = "ipvs"
	ModeNFTables    Mode = "nftables"
	ModeKernelspace Mode = "kernelspace"
)

// LocalMode says how to tell the cluster's own pods from other clients.
type LocalMode string

// The values of detectLocalMode. The default is LocalModeClusterCIDR.
const (
	LocalModeClusterCIDR         LocalMode = "ClusterCIDR"
	LocalModeNodeCIDR            LocalMode = "NodeCIDR"
	LocalModeBridgeInterface     LocalMode = "BridgeInterface"
	LocalModeInterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// IPFamilyPolicy names the IP families of the node's addresses.
type IPFamilyPolicy string

// The values of ipFamilyPolicy. Empty is as PreferDualStack.
const (
	IPFamilyPolicySingleStack      IPFamilyPolicy = "SingleStack"
	IPFamilyPolicyPreferDualStack  IPFamilyPolicy = "PreferDualStack"
	IPFamilyPolicyRequireDualStack IPFamilyPolicy = "RequireDualStack"
)

// LeftoversPolicy says what to do with the rules of other modes.
type LeftoversPolicy string

// The values of linux.leftovers.
const (
	// LeftoversRemove removes them after the first sync.
	LeftoversRemove LeftoversPolicy = "remove"
	// LeftoversReport leaves them, and shows them in log and metric.
	LeftoversReport LeftoversPolicy = "report"
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
	// ClientConnection is for the API server. Defaults: contentType application/vnd.kubernetes.protobuf, qps 5, burst 10.
	ClientConnection componentbaseconfigv1alpha1.ClientConnectionConfiguration `json:"clientConnection"`
	// Logging is the logging configuration of every Kubernetes component.
	Logging logsapi.LoggingConfiguration `json:"logging,omitempty"`
	// HostnameOverride is the name of the Node; by default the host name.
	HostnameOverride string `json:"hostnameOverride"`
	// NodeIPOverride replaces the addresses in the Node object: at most one of each IP family, that of the primary family
	// first. 0.0.0.0 and :: override nothing, and choose the family of the default bind addresses.
	NodeIPOverride []string `json:"nodeIPOverride"`
	// IPFamilyPolicy chooses families of the node's addresses. With RequireDualStack the proxy exits unless it has both.
	IPFamilyPolicy IPFamilyPolicy `json:"ipFamilyPolicy"`
	// HealthzBindAddress is the IP and port of the health check server. Default 0.0.0.0:10256, or [::]:10256 when
	// nodeIPOverride starts with an IPv6 address. If it is empty after defaulting, there is no server.
	HealthzBindAddress string `json:"healthzBindAddress"`
	// MetricsBindAddress is that of the metrics server, in the same way. Default 127.0.0.1:10249 or [::1]:10249.
	MetricsBindAddress string `json:"metricsBindAddress"`
	// BindAddressHardFail makes the process exit if it cannot listen there; else it tries again. Default true.
	BindAddressHardFail *bool `json:"bindAddressHardFail"`
	// ConfigHardFail makes unknown and repeated fields errors instead of warnings. Default true.
	ConfigHardFail *bool `json:"configHardFail"`
	// EnableProfiling serves /debug/pprof on the metrics address.
	EnableProfiling bool `json:"enableProfiling"`
	// ShowHiddenMetricsForVersion is the minor version ("1.36") since which hidden metrics are shown.
	ShowHiddenMetricsForVersion string `json:"showHiddenMetricsForVersion"`

	// NodeLocal makes this process a server or a client of the node-local API. KEP-784 does not have it.
	NodeLocal *NodeLocalConfiguration `json:"nodeLocal,omitempty"`

	// Mode is the proxy mode. Default nftables.
	Mode Mode `json:"mode"`
	// Linux holds the settings of all modes on Linux.
	Linux LinuxConfiguration `json:"linux"`
	// Windows holds the settings of all modes on Windows.
	Windows WindowsConfiguration `json:"windows"`
	// IPTables holds the fields of the mode iptables.
	IPTables IPTablesConfiguration `json:"iptables"`
	// IPVS holds the fields of the mode ipvs.
	IPVS IPVSConfiguration `json:"ipvs"`
	// NFTables holds the fields of the mode nftables.
	NFTables NFTablesConfiguration `json:"nftables"`
	// Winkernel holds the fields of the mode kernelspace.
	Winkernel WinkernelConfiguration `json:"winkernel"`

	// DetectLocalMode says how to tell the cluster's pods from other clients. Default ClusterCIDR.
	DetectLocalMode LocalMode `json:"detectLocalMode"`
	// DetectLocal holds what DetectLocalMode needs.
	DetectLocal DetectLocalConfiguration `json:"detectLocal"`
	// NodePortAddresses are CIDRs and keywords for the addresses on which node ports
	// answer. Default for nftables: primary.
	NodePortAddresses []string `json:"nodePortAddresses"`

	// SyncPeriod: the proxy is unhealthy if a change waits for twice this time for a successful sync. Default 30s.
	SyncPeriod metav1.Duration `json:"syncPeriod"`
	// MinSyncPeriod is the least time from one sync to the next. Default 0s (kube-proxy's is 1s).
	MinSyncPeriod metav1.Duration `json:"minSyncPeriod"`
	// ConfigSyncPeriod is the period after which kube-proxy handles all objects again. Unused here. Default 15m.
	ConfigSyncPeriod metav1.Duration `json:"configSyncPeriod"`
}

// LinuxConfiguration is the section "linux".
type LinuxConfiguration struct {
	// Conntrack holds limits of the connection tracking table.
	Conntrack ConntrackConfiguration `json:"conntrack"`
	// MasqueradeAll masquerades all traffic to ClusterIPs.
	MasqueradeAll bool `json:"masqueradeAll"`
	// OOMScoreAdj is the proxy's own oom_score_adj, -1000 to 1000. Default -999.
	OOMScoreAdj *int32 `json:"oomScoreAdj"`
	// Leftovers says what to do with the rules that another mode of kube-proxy left on the node. Default remove.
	// KEP-784 and kube-proxy, which removes them, do not have this field.
	Leftovers LeftoversPolicy `json:"leftovers"`
	// LeftoversDrainTimeout limits how long established connections keep the virtual servers that the mode ipvs left.
	// Default 1h; 0s ends them at once. Only this project has the field.
	LeftoversDrainTimeout *metav1.Duration `json:"leftoversDrainTimeout"`
}

// ConntrackConfiguration is the section "linux.conntrack". A timeout of 0 leaves the kernel's.
type ConntrackConfiguration struct {
	// MaxPerCore is the number of tracked connections for each CPU core; 0 leaves the kernel's limit. Default 32768.
	MaxPerCore *int32 `json:"maxPerCore"`
	// Min is the least limit of tracked connections, unless MaxPerCore is 0. Default 131072.
	Min *int32 `json:"min"`
	// TCPEstablishedTimeout is the timeout of an idle TCP connection. Default 24h.
	TCPEstablishedTimeout *metav1.Duration `json:"tcpEstablishedTimeout"`
	// TCPCloseWaitTimeout is the timeout of a connection in CLOSE_WAIT. Default 1h.
	TCPCloseWaitTimeout *metav1.Duration `json:"tcpCloseWaitTimeout"`
	// TCPBeLiberal makes the kernel accept packets outside of the TCP window.
	TCPBeLiberal bool `json:"tcpBeLiberal"`
	// UDPTimeout is the timeout of a UDP flow without answer.
	UDPTimeout metav1.Duration `json:"udpTimeout"`
	// UDPStreamTimeout is the timeout of a UDP flow with answers.
	UDPStreamTimeout metav1.Duration `json:"udpStreamTimeout"`
}

// DetectLocalConfiguration is the section "detectLocal".
type DetectLocalConfiguration struct {
	// BridgeInterface is the bridge that pods are connected to (mode BridgeInterface).
	BridgeInterface string `json:"bridgeInterface"`
	// ClusterCIDRs are the ranges of the cluster's pods, at most one a family (mode ClusterCIDR).
	ClusterCIDRs []string `json:"clusterCIDRs"`
	// InterfaceNamePrefix is the prefix of the names of pods' interfaces (mode InterfaceNamePrefix).
	InterfaceNamePrefix string `json:"interfaceNamePrefix"`
}
