package main

import (
	"github.com/nftproxy/nftproxy/internal/config"
)

// flagInfo says what a flag does here.
type flagInfo struct {
	name string
	// field is the path of what it sets in a v1alpha2 document; empty if that has no such field.
	field string
	// ignored is why the flag has no effect; empty if it has one.
	ignored string
	// besideConfig says that the flag counts when there is a configuration file too.
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

// flagNames is how errors about the configuration name its fields when flags set them.
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
