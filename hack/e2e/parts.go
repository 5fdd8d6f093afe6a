package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// part is a part of the suite: the specs of SIG Network whose names match.
type part struct {
	name  string
	focus string
}

// parts are in the order in which they run. A spec belongs to the first one that matches.
var parts = []part{
	{"services", `\[sig-network\] Services `},
	{"loadbalancers", `\[sig-network\] LoadBalancers`},
	{"networking", `\[sig-network\] (Networking|NoSNAT|Connectivity Pod Lifecycle|LocalhostNodePorts) `},
	{"conntrack", `\[sig-network\] Conntrack `},
	{"endpointslices", `\[sig-network\] (EndpointSlice|EndpointSliceMirroring|Endpoints|EndpointsController) `},
	{"topology", `\[sig-network\] (Topology Hints|Traffic Distribution) `},
	{"dns", `\[sig-network\] DNS `},
	{"hostport", `\[sig-network\] HostPort `},
	{"dualstack", `\[sig-network\] \[Feature:IPv6DualStack\]`},
	{"kubeproxy", `\[sig-network\] (KubeProxy|Proxy|Service CIDRs|ServiceCIDR and IPAddress API|Service endpoints latency|API Server) `},
}

// omission is a group of specs that no part runs.
type omission struct{ match, reason string }

// omissions are why specs of SIG Network are left out, the first that matches.
var omissions = []omission{
	{`SCTP`, "SCTP needs a kernel module that not every machine has"},
	{`Netpol|NetworkPolicy|NetworkPolicies`, "network policies are the network plugin's, not the proxy's"},
	{`Ingress`, "no ingress controller, and the proxy does not know Ingresses"},
	{`IPerf2|Feature:NetworkingPerformance|Feature:PerformanceDNS`, "measures the machine"},
	{`Feature:Networking-IPv4|Feature:Networking-IPv6|Internet|Networking-DNS`, "needs the Internet"},
	{`Feature:NFAcct|nfacct`, "counters of kube-proxy's own"},
	{`Feature:GCE|Feature:Loadbalancing-?|provider`, "needs a cloud provider"},
	{`should work after restarting apiserver|should work after restarting kube-proxy|after the service has been recreated.*SSH`, "deletes pods of the control plane, which are processes here"},
	{`Kubelet.*cleanup|\[Disruptive\]`, "breaks the nodes for the specs beside it"},
	{`DNS configMap`, "changes CoreDNS for the specs beside it"},
	{`\[Alpha\]|Feature:OffByDefault`, "needs a feature that is off by default"},
}

func partNames() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// selectParts returns the named parts, or all.
func selectParts(names string) ([]part, error) {
	if names == "" {
		return parts, nil
	}
	var selected []part
	for _, name := range strings.Split(names, ",") {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no part %q; there are %s", name, strings.Join(partNames(), ", "))
		}
		selected = append(selected, parts[i])
	}
	return selected, nil
}

// skips is the expression of all omissions.
func skips() string {
	var all []string
	for _, o := range omissions {
		all = append(all, o.match)
	}
	return strings.Join(all, "|")
}

// leftOut says why a spec of SIG Network runs in no part. The reason is empty if it runs.
func leftOut(spec string) string {
	for _, o := range omissions {
		if regexp.MustCompile(o.match).MatchString(spec) {
			return o.reason
		}
	}
	for _, p := range parts {
		if regexp.MustCompile(p.focus).MatchString(spec) {
			return ""
		}
	}
	return "concerns neither the proxy nor its traffic"
}
