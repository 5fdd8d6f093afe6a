package leftovers

import (
	"slices"
	"strings"
)

// Names of chains as kube-proxy v1.36 has them in its modes iptables and ipvs, and as older versions had them.
//
// The kubelet has chains of its own, which no proxy may touch: KUBE-FIREWALL, KUBE-IPTABLES-HINT,
// KUBE-KUBELET-CANARY, and KUBE-MARK-DROP before v1.27. Network plugins have others that begin with KUBE-, such as
// kube-router's KUBE-ROUTER-INPUT and KUBE-NWPLCY-…. So nothing goes by KUBE- alone.
var (
	proxyChains = []string{
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	}
	// servicePrefixes are those of chains of one Service or endpoint.
	servicePrefixes = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-"}
	// sharedChains are made by kubelets before v1.27 too, and network plugins may use them: the CNI plugin
	// portmap jumps to KUBE-MARK-MASQ if told to. Alone they do nothing to Services, so they are no sign of another mode.
	sharedChains = []string{markChain, postroutingChain}
)

const (
	markChain        = "KUBE-MARK-MASQ"
	postroutingChain = "KUBE-POSTROUTING"
)

// isProxyChain reports whether only kube-proxy makes chains of that name.
func isProxyChain(name string) bool {
	return slices.Contains(proxyChains, name) ||
		slices.ContainsFunc(servicePrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// isRemovable reports whether kube-proxy --cleanup removes chains of that name.
func isRemovable(name string) bool { return isProxyChain(name) || slices.Contains(sharedChains, name) }
