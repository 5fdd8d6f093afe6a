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

// partNames are the names of the suite's parts and of the scenarios.
func partNames() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

// selection is what a run has.
type selection struct {
	parts     []part
	scenarios []scenario
}

// selectParts returns the named parts and scenarios, or all.
func selectParts(names string) (selected selection, err error) {
	if names == "" {
		return selection{parts, scenarios}, nil
	}
	for _, name := range strings.Split(names, ",") {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
		j := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
		switch {
		case i >= 0:
			selected.parts = append(selected.parts, parts[i])
		case j >= 0:
			selected.scenarios = append(selected.scenarios, scenarios[j])
		default:
			return selected, fmt.Errorf("there is no part %q; there are %s", name, strings.Join(partNames(), ", "))
		}
	}
	return selected, nil
}

// focused narrows the parts to specs that match an expression. It drops parts without such a spec, and scenarios unless
// the parts were named.
func (s selection) focused(focus string, named bool, specs []string) (selection, error) {
	if focus == "" {
		return s, nil
	}
	var all []part
	for _, p := range s.parts {
		p.focus += ".*(" + focus + ")"
		matches, err := regexp.Compile(p.focus)
		if err != nil {
			return s, fmt.Errorf("--focus: %w", err)
		}
		if slices.ContainsFunc(specs, func(spec string) bool { return leftOut(spec) == "" && matches.MatchString(spec) }) {
			all = append(all, p)
		}
	}
	if s.parts = all; len(all) == 0 {
		return s, fmt.Errorf("--focus %q matches no spec of the selected parts", focus)
	}
	if !named {
		s.scenarios = nil
	}
	return s, nil
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
