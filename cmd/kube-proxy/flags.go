package main

import (
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/nftproxy/nftproxy/internal/config"
)

// addFlags adds every flag of kube-proxy v1.37, those that v1.36 had besides, and --manifests, --write-config-version
// and those of the node-local API. flagTable has an entry for each.
func (o *options) addFlags(flags *pflag.FlagSet) {
	o.flags = flags
	o.addCommandFlags(flags)
	o.addServerFlags(flags)
	o.nodeLocal.addFlags(flags)
	o.addTrafficFlags(flags)
	o.addNodeFlags(flags)
	o.addOtherModesFlags(flags)
	addUnusedFlags(flags)
	logsapi.AddFlags(&o.config.Logging, flags)
}

// addCommandFlags adds the flags that choose the task of the process.
func (o *options) addCommandFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.configFile, "config", "", "Path to a KubeProxyConfiguration, v1alpha1 or v1alpha2; the process exits when the file changes. With it, most other flags are ignored")
	flags.StringVar(&o.writeConfigTo, "write-config-to", "", "Write the configuration with all defaults to this file and exit; with --config, this converts")
	flags.StringVar(&o.writeConfigVersion, "write-config-version", config.V1alpha2, "The version that --write-config-to writes: v1alpha2, or v1alpha1, which Kubernetes' kube-proxy reads")
	flags.BoolVar(&o.cleanup, "cleanup", false, "Remove the tables ip kube-proxy and ip6 kube-proxy, and the chains that kube-proxy's modes iptables and ipvs made with iptables-nft, and exit; with --service-proxy-name, remove the tables of that proxy only")
	flags.StringVar(&o.serviceProxyName, "service-proxy-name", "", serviceProxyNameHelp+", in tables of their own: ip kube-proxy.NAME and ip6 kube-proxy.NAME")
	flags.BoolVar(&o.initOnly, "init-only", false, "Set the sysctls, which needs full root privileges, and exit; kube-proxy can then run with CAP_NET_ADMIN alone")
	flags.StringVar(&o.hostname, "hostname-override", "", "The name of the Node that this proxy runs on; by default the host name")
	flags.Var(cliflag.NewMapStringBool(&o.config.FeatureGates), "feature-gates", "Feature gates to set, as name=true or name=false; accepts kube-proxy's gates, and warns of those without effect")
}

// addServerFlags adds the flags for the API server, and for the proxy's own servers.
func (o *options) addServerFlags(flags *pflag.FlagSet) {
	c := o.config
	flags.StringVar(&c.ClientConnection.Kubeconfig, "kubeconfig", "", "Path to a kubeconfig file for the API server; without it and without --manifests, the pod's service account is used")
	flags.StringVar(&o.master, "master", "", "The address of the API server; overrides the one in the kubeconfig file")
	flags.StringVar(&o.manifests, "manifests", "", "A directory with manifests of Services, EndpointSlices, Nodes and ServiceCIDRs (.yaml, .yml, .json) to take them from instead of an API server; watched for changes")
	flags.StringVar(&c.ClientConnection.ContentType, "kube-api-content-type", c.ClientConnection.ContentType, "The encoding of requests to the API server")
	flags.Float32Var(&c.ClientConnection.QPS, "kube-api-qps", c.ClientConnection.QPS, "Requests per second to the API server")
	flags.Int32Var(&c.ClientConnection.Burst, "kube-api-burst", c.ClientConnection.Burst, "Requests to the API server at once, above the rate")
	flags.DurationVar(&c.ConfigSyncPeriod.Duration, "config-sync-period", c.ConfigSyncPeriod.Duration, "The period after which kube-proxy handles all objects again; ignored")
	flags.StringVar(&o.healthzAddress, "healthz-bind-address", o.healthzAddress, `The IP address and port of the health check server; "" disables it`)
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", o.metricsAddress, `The IP address and port of the metrics server; "" disables it`)
	flags.BoolVar(c.BindAddressHardFail, "bind-address-hard-fail", *c.BindAddressHardFail, "Exit when the proxy cannot listen on one of these addresses, instead of trying again")
	flags.BoolVar(&c.EnableProfiling, "profiling", false, "Serve /debug/pprof on the metrics address")
	flags.StringVar(&c.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "", `Show metrics that are hidden since this minor version, such as "1.36"`)
	flags.Int32Var(&o.healthzPort, "healthz-port", o.healthzPort, "The port of the health check server; 0 disables it")
	flags.Int32Var(&o.metricsPort, "metrics-port", o.metricsPort, "The port of the metrics server; 0 disables it")
	for _, name := range []string{"healthz", "metrics"} {
		// Fails only for a flag that is not there.
		_ = flags.MarkDeprecated(name+"-port", "use --"+name+"-bind-address")
	}
}

// addTrafficFlags adds the flags that shape the rules.
func (o *options) addTrafficFlags(flags *pflag.FlagSet) {
	c := o.config
	flags.StringVar((*string)(&c.Mode), "proxy-mode", string(c.Mode), "The proxy mode: nftables is the only one")
	flags.StringVar((*string)(&c.DetectLocalMode), "detect-local-mode", string(c.DetectLocalMode), "How to tell the cluster's pods from other clients: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	flags.StringVar(&o.clusterCIDR, "cluster-cidr", "", "The range of the cluster's pods, or one of each IP family separated by a comma; clients outside it are masqueraded when they dial a ClusterIP (detect-local mode ClusterCIDR)")
	flags.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "The bridge that pods are connected to (detect-local mode BridgeInterface)")
	flags.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "The prefix of the names of the pods' interfaces on the node (detect-local mode InterfaceNamePrefix)")
	flags.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", c.NodePortAddresses, `The node's addresses on which node ports answer: CIDRs, "primary" (the addresses of the Node object), "localhost" and "all"`)
	flags.BoolVar(&c.Linux.MasqueradeAll, "masquerade-all", false, "Masquerade all traffic to ClusterIPs")
	flags.Int32Var(c.IPTables.MasqueradeBit, "iptables-masquerade-bit", *c.IPTables.MasqueradeBit, "The bit of the packet mark, 0 to 31, that marks packets for masquerading; ignored if --proxy-mode is given")
	flags.DurationVar(&c.SyncPeriod.Duration, "iptables-sync-period", c.SyncPeriod.Duration, "The proxy is unhealthy when a change has waited for twice this time for a successful sync")
	flags.DurationVar(&c.MinSyncPeriod.Duration, "iptables-min-sync-period", c.MinSyncPeriod.Duration, "The minimum time from one sync to the next; 0 is no delay")
}

// addNodeFlags adds the flags for the node and the process.
func (o *options) addNodeFlags(flags *pflag.FlagSet) {
	linux := &o.config.Linux
	flags.StringVar(&o.bindAddress, "bind-address", "", "The node's primary IP address, instead of the one in the Node object; 0.0.0.0 and :: override nothing. Nothing is bound to it")
	flags.Int32Var(linux.OOMScoreAdj, "oom-score-adj", *linux.OOMScoreAdj, "The process's oom_score_adj, -1000 to 1000")
	flags.Int32Var(linux.Conntrack.MaxPerCore, "conntrack-max-per-core", *linux.Conntrack.MaxPerCore, "The number of tracked connections for each CPU core; 0 leaves the kernel's limit")
	flags.Int32Var(linux.Conntrack.Min, "conntrack-min", *linux.Conntrack.Min, "The least limit of tracked connections, unless --conntrack-max-per-core is 0")
	flags.BoolVar(&linux.Conntrack.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "Treat packets outside of the TCP window as valid")
	for _, timeout := range []struct {
		name, usage string
		value       *time.Duration
	}{
		{"conntrack-tcp-timeout-established", "The timeout of an idle TCP connection in connection tracking; 0 leaves the kernel's timeout", &linux.Conntrack.TCPEstablishedTimeout.Duration},
		{"conntrack-tcp-timeout-close-wait", "The timeout of a TCP connection in CLOSE_WAIT; 0 leaves the kernel's timeout", &linux.Conntrack.TCPCloseWaitTimeout.Duration},
		{"conntrack-udp-timeout", "The timeout of a UDP flow without answer; 0 leaves the kernel's timeout", &linux.Conntrack.UDPTimeout.Duration},
		{"conntrack-udp-timeout-stream", "The timeout of a UDP flow with answers; 0 leaves the kernel's timeout", &linux.Conntrack.UDPStreamTimeout.Duration},
	} {
		flags.DurationVar(timeout.value, timeout.name, *timeout.value, timeout.usage)
	}
}

// addOtherModesFlags adds the flags for modes that this proxy does not have. --write-config-to
// writes their values nevertheless.
func (o *options) addOtherModesFlags(flags *pflag.FlagSet) {
	c := &o.config.IPVS
	flags.BoolVar(o.config.IPTables.LocalhostNodePorts, "iptables-localhost-nodeports", *o.config.IPTables.LocalhostNodePorts, `Let node ports answer on loopback addresses (mode iptables); here, add "localhost" to --nodeport-addresses`)
	flags.StringVar(&c.Scheduler, "ipvs-scheduler", "", "The scheduler of the mode ipvs; ignored")
	flags.StringSliceVar(&c.ExcludeCIDRs, "ipvs-exclude-cidrs", nil, "CIDRs that the mode ipvs does not clean up; ignored")
	flags.BoolVar(&c.StrictARP, "ipvs-strict-arp", false, "Strict ARP in the mode ipvs; ignored")
	flags.DurationVar(&c.TCPTimeout.Duration, "ipvs-tcp-timeout", 0, "The timeout of idle TCP sessions in the mode ipvs; ignored")
	flags.DurationVar(&c.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0, "The timeout of TCP sessions after a FIN in the mode ipvs; ignored")
	flags.DurationVar(&c.UDPTimeout.Duration, "ipvs-udp-timeout", 0, "The timeout of UDP sessions in the mode ipvs; ignored")
	flags.DurationVar(&o.ipvsSyncPeriod, "ipvs-sync-period", o.config.SyncPeriod.Duration, "The sync period of the mode ipvs; ignored")
	flags.DurationVar(&o.ipvsMinSyncPeriod, "ipvs-min-sync-period", o.config.MinSyncPeriod.Duration, "The minimum sync period of the mode ipvs; ignored")
}

// addUnusedFlags adds the flags that kube-proxy had up to v1.36, because a library in it had them.
func addUnusedFlags(flags *pflag.FlagSet) {
	flags.String("boot-id-file", "/proc/sys/kernel/random/boot_id", "Files to read the boot ID from; ignored")
	flags.String("machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id", "Files to read the machine ID from; ignored")
}

// flagInfo says what a flag does here.
type flagInfo struct {
	name string
	// field is the path of the field that it sets in a v1alpha2 document; empty if there is none.
	field string
	// ignored says why the flag has no effect; empty if it has one.
	ignored string
	// besideConfig says that the flag has an effect beside a configuration file too.
	besideConfig bool
}

const (
	noIPVS     = "it is about the mode ipvs, which this proxy does not have"
	noIPTables = `it is about the mode iptables, which this proxy does not have; add "localhost" to --nodeport-addresses instead`
	notRead    = "no kube-proxy ever read the file, and v1.37 does not have the flag; remove it"
	noResync   = "objects are not published again: each is applied when it arrives, and tried again until that succeeds"
)

// flagTable has every flag of the command, in alphabetical order.
var flagTable = []flagInfo{
	{name: "authorize-node-names", field: "nodeLocal.authorizeNodeNames", besideConfig: true},
	{name: "bind-address", field: "nodeIPOverride"},
	{name: "bind-address-hard-fail", field: "bindAddressHardFail"},
	{name: "boot-id-file", ignored: notRead, besideConfig: true},
	{name: "cleanup", besideConfig: true},
	{name: "cluster-cidr", field: "detectLocal.clusterCIDRs"},
	{name: "config", besideConfig: true},
	{name: "config-sync-period", field: "configSyncPeriod", ignored: noResync},
	{name: "conntrack-max-per-core", field: "linux.conntrack.maxPerCore"},
	{name: "conntrack-min", field: "linux.conntrack.min"},
	{name: "conntrack-tcp-be-liberal", field: "linux.conntrack.tcpBeLiberal"},
	{name: "conntrack-tcp-timeout-close-wait", field: "linux.conntrack.tcpCloseWaitTimeout"},
	{name: "conntrack-tcp-timeout-established", field: "linux.conntrack.tcpEstablishedTimeout"},
	{name: "conntrack-udp-timeout", field: "linux.conntrack.udpTimeout"},
	{name: "conntrack-udp-timeout-stream", field: "linux.conntrack.udpStreamTimeout"},
	{name: "detect-local-mode", field: "detectLocalMode"},
	{name: "feature-gates", field: "featureGates"},
	{name: "healthz-bind-address", field: "healthzBindAddress"},
	{name: "healthz-port"},
	{name: "help", besideConfig: true},
	{name: "hostname-override", field: "hostnameOverride", besideConfig: true},
	{name: "init-only", besideConfig: true},
	{name: "iptables-localhost-nodeports", field: "iptables.localhostNodePorts", ignored: noIPTables},
	{name: "iptables-masquerade-bit", field: "iptables.masqueradeBit"},
	{name: "iptables-min-sync-period", field: "minSyncPeriod"},
	{name: "iptables-sync-period", field: "syncPeriod"},
	{name: "ipvs-exclude-cidrs", field: "ipvs.excludeCIDRs", ignored: noIPVS},
	{name: "ipvs-min-sync-period", ignored: noIPVS},
	{name: "ipvs-scheduler", field: "ipvs.scheduler", ignored: noIPVS},
	{name: "ipvs-strict-arp", field: "ipvs.strictARP", ignored: noIPVS},
	{name: "ipvs-sync-period", ignored: noIPVS},
	{name: "ipvs-tcp-timeout", field: "ipvs.tcpTimeout", ignored: noIPVS},
	{name: "ipvs-tcpfin-timeout", field: "ipvs.tcpFinTimeout", ignored: noIPVS},
	{name: "ipvs-udp-timeout", field: "ipvs.udpTimeout", ignored: noIPVS},
	{name: "kube-api-burst", field: "clientConnection.burst"},
	{name: "kube-api-content-type", field: "clientConnection.contentType"},
	{name: "kube-api-qps", field: "clientConnection.qps"},
	{name: "kubeconfig", field: "clientConnection.kubeconfig"},
	{name: "log-flush-frequency", field: "logging.flushFrequency", besideConfig: true},
	{name: "log-json-info-buffer-size", field: "logging.options.json.infoBufferSize", besideConfig: true},
	{name: "log-json-split-stream", field: "logging.options.json.splitStream", besideConfig: true},
	{name: "log-text-info-buffer-size", field: "logging.options.text.infoBufferSize", besideConfig: true},
	{name: "log-text-split-stream", field: "logging.options.text.splitStream", besideConfig: true},
	{name: "logging-format", field: "logging.format", besideConfig: true},
	{name: "machine-id-file", ignored: notRead, besideConfig: true},
	{name: "manifests", besideConfig: true},
	{name: "masquerade-all", field: "linux.masqueradeAll"},
	{name: "master", besideConfig: true},
	{name: "metrics-bind-address", field: "metricsBindAddress"},
	{name: "metrics-port"},
	{name: "node-local-ca-file", field: "nodeLocal.caFile", besideConfig: true},
	{name: "node-local-cert-file", field: "nodeLocal.certFile", besideConfig: true},
	{name: "node-local-key-file", field: "nodeLocal.keyFile", besideConfig: true},
	{name: "node-local-max-addresses", field: "nodeLocal.limits.addresses", besideConfig: true},
	{name: "node-local-max-bytes", field: "nodeLocal.limits.bytes", besideConfig: true},
	{name: "node-local-max-ports", field: "nodeLocal.limits.ports", besideConfig: true},
	{name: "node-local-source", field: "nodeLocal.source", besideConfig: true},
	{name: "nodeport-addresses", field: "nodePortAddresses"},
	{name: "oom-score-adj", field: "linux.oomScoreAdj"},
	{name: "pod-bridge-interface", field: "detectLocal.bridgeInterface"},
	{name: "pod-interface-name-prefix", field: "detectLocal.interfaceNamePrefix"},
	{name: "profiling", field: "enableProfiling"},
	{name: "proxy-mode", field: "mode"},
	{name: "serve-node-local", field: "nodeLocal.serve", besideConfig: true},
	{name: "service-proxy-name", besideConfig: true},
	{name: "show-hidden-metrics-for-version", field: "showHiddenMetricsForVersion"},
	{name: "v", field: "logging.verbosity", besideConfig: true},
	{name: "version", besideConfig: true},
	{name: "vmodule", field: "logging.vmodule", besideConfig: true},
	{name: "write-config-to", besideConfig: true},
	{name: "write-config-version", besideConfig: true},
}

// flagNames names the fields of the configuration by their flags, for errors.
func flagNames() config.Names {
	// A flag for the bit of nftables alone does not exist.
	names := config.Names{"nftables.masqueradeBit": "--iptables-masquerade-bit", "ipvs.masqueradeBit": "--iptables-masquerade-bit"}
	for _, f := range flagTable {
		if f.field != "" {
			names[f.field] = "--" + f.name
		}
	}
	return names
}
