package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/nodelocal"
)

// flagInfo is a flag of the command.
type flagInfo struct {
	name string
	// field is the path of the field that it sets in a v1alpha2 document; empty if there is none.
	field string
	// value points to the flag's variable, which holds the default; or it is a pflag.Value, or a func for a bool's
	// text. It is nil for a flag of a library.
	value any
	usage string
	// besideConfig says that the flag has an effect beside a configuration file too.
	besideConfig bool
}

// flagTable returns all flags of kube-proxy v1.36 and v1.37, and this project's own flags, in alphabetical order.
func (o *options) flagTable() []flagInfo {
	table := slices.Concat(o.processFlags(), o.nodeLocal.flags(), loggingFlags)
	for i := range table {
		table[i].besideConfig = true
	}
	table = append(table, o.configFlags()...)
	slices.SortFunc(table, func(a, b flagInfo) int { return cmp.Compare(a.name, b.name) })
	return table
}

// addFlags adds all flags.
func (o *options) addFlags(flags *pflag.FlagSet) {
	o.flags = flags
	addFlags(flags, o.flagTable())
	logsapi.AddFlags(&o.config.Logging, flags)
	for _, name := range []string{"healthz", "metrics"} {
		// Fails only for a flag that is not there.
		_ = flags.MarkDeprecated(name+"-port", "use --"+name+"-bind-address")
	}
}

// addSome adds the named flags.
func (o *options) addSome(flags *pflag.FlagSet, names ...string) {
	addFlags(flags, slices.DeleteFunc(o.flagTable(), func(f flagInfo) bool { return !slices.Contains(names, f.name) }))
}

func addFlags(flags *pflag.FlagSet, table []flagInfo) {
	for _, f := range table {
		switch v := f.value.(type) {
		case *string:
			flags.StringVar(v, f.name, *v, f.usage)
		case *[]string:
			flags.StringSliceVar(v, f.name, *v, f.usage)
		case *bool:
			flags.BoolVar(v, f.name, *v, f.usage)
		case *int32:
			flags.Int32Var(v, f.name, *v, f.usage)
		case *int64:
			flags.Int64Var(v, f.name, *v, f.usage)
		case *float32:
			flags.Float32Var(v, f.name, *v, f.usage)
		case *time.Duration:
			flags.DurationVar(v, f.name, *v, f.usage)
		case func(string) error:
			flags.BoolFunc(f.name, f.usage, v)
		case pflag.Value:
			flags.Var(v, f.name, f.usage)
		}
	}
}

// processFlags are the flags for the task of the process, and for the source of Services.
func (o *options) processFlags() []flagInfo {
	return []flagInfo{
		{name: "help"},
		{name: "version"},
		{name: "config", value: &o.configFile, usage: "Path to a KubeProxyConfiguration, v1alpha1 or v1alpha2; the process exits when the file changes. With it, most other flags are ignored"},
		{name: "write-config-to", value: &o.writeConfigTo, usage: "Write the configuration with all defaults to this file and exit; with --config, this converts"},
		{name: "write-config-version", value: &o.writeConfigVersion, usage: "The version that --write-config-to writes: v1alpha2, or v1alpha1, which Kubernetes' kube-proxy reads"},
		{name: "cleanup", value: &o.cleanup, usage: "Remove the tables ip kube-proxy and ip6 kube-proxy, and what kube-proxy's modes iptables and ipvs left, and exit; with --service-proxy-name, remove the tables of that proxy only"},
		{name: "service-proxy-name", value: &o.serviceProxyName, usage: serviceProxyNameHelp + ", in tables of their own: ip kube-proxy.NAME and ip6 kube-proxy.NAME"},
		{name: "init-only", value: &o.initOnly, usage: "Set the sysctls, which needs full root privileges, and exit; kube-proxy can then run with CAP_NET_ADMIN alone"},
		{name: "hostname-override", field: "hostnameOverride", value: &o.hostname, usage: "The name of the Node that this proxy runs on; by default the host name"},
		{name: "leftovers", field: "linux.leftovers", value: (*string)(&o.leftovers), usage: "What to do with what kube-proxy's modes iptables and ipvs left on the node: remove it after the first sync, or report it in log and metric (default remove)"},
		{name: "leftovers-drain-timeout", field: "linux.leftoversDrainTimeout", value: &o.drainTimeout, usage: "How long established connections keep the virtual servers that the mode ipvs left; then they end. 0 ends them at once"},
		{name: "master", value: &o.master, usage: "The address of the API server; overrides the one in the kubeconfig file"},
		{name: "manifests", value: &o.manifests, usage: "A directory with manifests of Services, EndpointSlices, Nodes and ServiceCIDRs (.yaml, .yml, .json) to take them from instead of an API server; watched for changes"},
		// Flags of a library in kube-proxy up to v1.36.
		{name: "boot-id-file", value: new("/proc/sys/kernel/random/boot_id"), usage: "Files to read the boot ID from; ignored"},
		{name: "machine-id-file", value: new("/etc/machine-id,/var/lib/dbus/machine-id"), usage: "Files to read the machine ID from; ignored"},
	}
}

// flags are the flags for the node-local API.
func (n *nodeLocalOptions) flags() []flagInfo {
	authorize := func(text string) error {
		yes, err := strconv.ParseBool(text)
		n.AuthorizeNodeNames = &yes
		return err
	}
	limits := nodelocal.DefaultLimits
	return []flagInfo{
		{name: "serve-node-local", field: "nodeLocal.serve", value: &n.Serve, usage: "Serve the node-local API to other programs, at unix:///PATH, or at tcp://HOST:PORT with the --node-local-*-file flags"},
		{name: "authorize-node-names", field: "nodeLocal.authorizeNodeNames", value: authorize, usage: "Serve a node over tcp:// only to clients with a certificate for system:node:NAME (common name, or alternative name); false lets every certificate of the CA watch every node (default true)"},
		{name: "node-local-source", field: "nodeLocal.source", value: &n.Source, usage: "Take Services from the node-local server at unix:///PATH or tcp://HOST:PORT instead of an API server"},
		{name: "node-local-max-ports", field: "nodeLocal.limits.ports", value: &n.Limits.Ports, usage: fmt.Sprintf("The limit of Service ports that the node-local server may send; 0 is %d", limits.Ports)},
		{name: "node-local-max-addresses", field: "nodeLocal.limits.addresses", value: &n.Limits.Addresses, usage: fmt.Sprintf("The limit of addresses of those ports; 0 is %d", limits.Addresses)},
		{name: "node-local-max-bytes", field: "nodeLocal.limits.bytes", value: &n.Limits.Bytes, usage: fmt.Sprintf("The limit of bytes in a batch of the node-local server; 0 is %d", limits.Bytes)},
		{name: "node-local-cert-file", field: "nodeLocal.certFile", value: &n.CertFile, usage: "The certificate of this side of the node-local API over tcp://, in PEM"},
		{name: "node-local-key-file", field: "nodeLocal.keyFile", value: &n.KeyFile, usage: "The key of that certificate, in PEM"},
		{name: "node-local-ca-file", field: "nodeLocal.caFile", value: &n.CAFile, usage: "The authority that signs the certificates of the other side of the node-local API over tcp://, in PEM"},
	}
}

// loggingFlags are the flags of logsapi.AddFlags.
var loggingFlags = []flagInfo{
	{name: "log-flush-frequency", field: "logging.flushFrequency"},
	{name: "log-json-info-buffer-size", field: "logging.options.json.infoBufferSize"},
	{name: "log-json-split-stream", field: "logging.options.json.splitStream"},
	{name: "log-text-info-buffer-size", field: "logging.options.text.infoBufferSize"},
	{name: "log-text-split-stream", field: "logging.options.text.splitStream"},
	{name: "logging-format", field: "logging.format"},
	{name: "v", field: "logging.verbosity"},
	{name: "vmodule", field: "logging.vmodule"},
}

// configFlags are the flags that a configuration file replaces.
func (o *options) configFlags() []flagInfo {
	c, linux, conntrack := o.config, &o.config.Linux, &o.config.Linux.Conntrack
	return []flagInfo{
		// For the API server, and for the proxy's own servers.
		{name: "feature-gates", field: "featureGates", value: cliflag.NewMapStringBool(&c.FeatureGates), usage: "Feature gates to set, as name=true or name=false; accepts kube-proxy's gates, and warns of those without effect"},
		{name: "kubeconfig", field: "clientConnection.kubeconfig", value: &c.ClientConnection.Kubeconfig, usage: "Path to a kubeconfig file for the API server; without it and without --manifests, the pod's service account is used"},
		{name: "kube-api-content-type", field: "clientConnection.contentType", value: &c.ClientConnection.ContentType, usage: "The encoding of requests to the API server"},
		{name: "kube-api-qps", field: "clientConnection.qps", value: &c.ClientConnection.QPS, usage: "Requests per second to the API server"},
		{name: "kube-api-burst", field: "clientConnection.burst", value: &c.ClientConnection.Burst, usage: "Requests to the API server at once, above the rate"},
		{name: "config-sync-period", field: "configSyncPeriod", value: &c.ConfigSyncPeriod.Duration, usage: "The period after which kube-proxy handles all objects again; ignored"},
		{name: "healthz-bind-address", field: "healthzBindAddress", value: &o.healthzAddress, usage: `The IP address and port of the health check server; "" disables it`},
		{name: "metrics-bind-address", field: "metricsBindAddress", value: &o.metricsAddress, usage: `The IP address and port of the metrics server; "" disables it`},
		{name: "bind-address-hard-fail", field: "bindAddressHardFail", value: c.BindAddressHardFail, usage: "Exit when the proxy cannot listen on one of these addresses, instead of trying again"},
		{name: "profiling", field: "enableProfiling", value: &c.EnableProfiling, usage: "Serve /debug/pprof on the metrics address"},
		{name: "show-hidden-metrics-for-version", field: "showHiddenMetricsForVersion", value: &c.ShowHiddenMetricsForVersion, usage: `Show metrics that are hidden since this minor version, such as "1.36"`},
		{name: "healthz-port", value: &o.healthzPort, usage: "The port of the health check server; 0 disables it"},
		{name: "metrics-port", value: &o.metricsPort, usage: "The port of the metrics server; 0 disables it"},
		// For the rules.
		{name: "proxy-mode", field: "mode", value: (*string)(&c.Mode), usage: "The proxy mode: nftables is the only one"},
		{name: "detect-local-mode", field: "detectLocalMode", value: (*string)(&c.DetectLocalMode), usage: "How to tell the cluster's pods from other clients: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix"},
		{name: "cluster-cidr", field: "detectLocal.clusterCIDRs", value: &o.clusterCIDR, usage: "The range of the cluster's pods, or one of each IP family separated by a comma; clients outside it are masqueraded when they dial a ClusterIP (detect-local mode ClusterCIDR)"},
		{name: "pod-bridge-interface", field: "detectLocal.bridgeInterface", value: &c.DetectLocal.BridgeInterface, usage: "The bridge that pods are connected to (detect-local mode BridgeInterface)"},
		{name: "pod-interface-name-prefix", field: "detectLocal.interfaceNamePrefix", value: &c.DetectLocal.InterfaceNamePrefix, usage: "The prefix of the names of the pods' interfaces on the node (detect-local mode InterfaceNamePrefix)"},
		{name: "nodeport-addresses", field: "nodePortAddresses", value: &c.NodePortAddresses, usage: `The node's addresses on which node ports answer: CIDRs, "primary" (the addresses of the Node object), "localhost" and "all"`},
		{name: "masquerade-all", field: "linux.masqueradeAll", value: &c.Linux.MasqueradeAll, usage: "Masquerade all traffic to ClusterIPs"},
		{name: "iptables-masquerade-bit", field: "iptables.masqueradeBit", value: c.IPTables.MasqueradeBit, usage: "The bit of the packet mark, 0 to 31, that marks packets for masquerading; ignored if --proxy-mode is given"},
		{name: "iptables-sync-period", field: "syncPeriod", value: &c.SyncPeriod.Duration, usage: "The proxy is unhealthy when a change has waited for twice this time for a successful sync"},
		{name: "iptables-min-sync-period", field: "minSyncPeriod", value: &c.MinSyncPeriod.Duration, usage: "The minimum time from one sync to the next; 0 is no delay"},
		// For the node and the process.
		{name: "bind-address", field: "nodeIPOverride", value: &o.bindAddress, usage: "The node's primary IP address, instead of the one in the Node object; 0.0.0.0 and :: override nothing. Nothing is bound to it"},
		{name: "oom-score-adj", field: "linux.oomScoreAdj", value: linux.OOMScoreAdj, usage: "The process's oom_score_adj, -1000 to 1000"},
		{name: "conntrack-max-per-core", field: "linux.conntrack.maxPerCore", value: conntrack.MaxPerCore, usage: "The number of tracked connections for each CPU core; 0 leaves the kernel's limit"},
		{name: "conntrack-min", field: "linux.conntrack.min", value: conntrack.Min, usage: "The least limit of tracked connections, unless --conntrack-max-per-core is 0"},
		{name: "conntrack-tcp-be-liberal", field: "linux.conntrack.tcpBeLiberal", value: &conntrack.TCPBeLiberal, usage: "Treat packets outside of the TCP window as valid"},
		{name: "conntrack-tcp-timeout-established", field: "linux.conntrack.tcpEstablishedTimeout", value: &conntrack.TCPEstablishedTimeout.Duration, usage: "The timeout of an idle TCP connection in connection tracking; 0 leaves the kernel's timeout"},
		{name: "conntrack-tcp-timeout-close-wait", field: "linux.conntrack.tcpCloseWaitTimeout", value: &conntrack.TCPCloseWaitTimeout.Duration, usage: "The timeout of a TCP connection in CLOSE_WAIT; 0 leaves the kernel's timeout"},
		{name: "conntrack-udp-timeout", field: "linux.conntrack.udpTimeout", value: &conntrack.UDPTimeout.Duration, usage: "The timeout of a UDP flow without answer; 0 leaves the kernel's timeout"},
		{name: "conntrack-udp-timeout-stream", field: "linux.conntrack.udpStreamTimeout", value: &conntrack.UDPStreamTimeout.Duration, usage: "The timeout of a UDP flow with answers; 0 leaves the kernel's timeout"},
		// For modes that this proxy does not have. --write-config-to writes their values.
		{name: "iptables-localhost-nodeports", field: "iptables.localhostNodePorts", value: c.IPTables.LocalhostNodePorts, usage: `Let node ports answer on loopback addresses (mode iptables); here, add "localhost" to --nodeport-addresses`},
		{name: "ipvs-scheduler", field: "ipvs.scheduler", value: &c.IPVS.Scheduler, usage: "The scheduler of the mode ipvs; ignored"},
		{name: "ipvs-exclude-cidrs", field: "ipvs.excludeCIDRs", value: &c.IPVS.ExcludeCIDRs, usage: "Addresses of virtual servers of other programs: they stay when what the mode ipvs left is removed"},
		{name: "ipvs-strict-arp", field: "ipvs.strictARP", value: &c.IPVS.StrictARP, usage: "Strict ARP in the mode ipvs; ignored"},
		{name: "ipvs-tcp-timeout", field: "ipvs.tcpTimeout", value: &c.IPVS.TCPTimeout.Duration, usage: "The timeout of idle TCP sessions in the mode ipvs; ignored"},
		{name: "ipvs-tcpfin-timeout", field: "ipvs.tcpFinTimeout", value: &c.IPVS.TCPFinTimeout.Duration, usage: "The timeout of TCP sessions after a FIN in the mode ipvs; ignored"},
		{name: "ipvs-udp-timeout", field: "ipvs.udpTimeout", value: &c.IPVS.UDPTimeout.Duration, usage: "The timeout of UDP sessions in the mode ipvs; ignored"},
		{name: "ipvs-sync-period", value: &o.ipvsSyncPeriod, usage: "The sync period of the mode ipvs; ignored"},
		{name: "ipvs-min-sync-period", value: &o.ipvsMinSyncPeriod, usage: "The minimum sync period of the mode ipvs; ignored"},
	}
}

// ignored returns why the flag has no effect; empty if it has one.
func (f flagInfo) ignored() string {
	switch {
	case strings.HasPrefix(f.name, "ipvs-") && f.name != "ipvs-exclude-cidrs":
		return "it is about the mode ipvs, which this proxy does not have"
	case f.name == "iptables-localhost-nodeports":
		return `it is about the mode iptables, which this proxy does not have; add "localhost" to --nodeport-addresses instead`
	case f.name == "boot-id-file", f.name == "machine-id-file":
		return "no kube-proxy ever read the file, and v1.37 does not have the flag; remove it"
	case f.name == "config-sync-period":
		return "objects are not published again: each is applied when it arrives, and tried again until that succeeds"
	}
	return ""
}

// flagNames names the fields of the configuration by their flags, for errors.
func (o *options) flagNames() config.Names {
	// No flag sets the bit of nftables alone.
	names := config.Names{"nftables.masqueradeBit": "--iptables-masquerade-bit", "ipvs.masqueradeBit": "--iptables-masquerade-bit"}
	for _, f := range o.flagTable() {
		if f.field != "" {
			names[f.field] = "--" + f.name
		}
	}
	return names
}
