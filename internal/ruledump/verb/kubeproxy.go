package verb

import (
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/nft"
)

// kubeProxyRoles are the roles of chains of Kubernetes' kube-proxy that have other names than nftproxy's.
var kubeProxyRoles = map[string]compiler.Role{
	"service-endpoints-check":  compiler.RoleNoEndpoints,
	"nodeport-endpoints-check": compiler.RoleNoEndpoints,
	"endpoints-check":          compiler.RoleNoEndpoints,
}

// isProxys reports whether a table is one of Kubernetes' kube-proxy, whose rules the Explanation is about.
func (e *Explanation) isProxys(t *nft.Table) bool {
	return e.rules.KubeProxys() && slices.ContainsFunc(e.rules.Tables, func(own *nft.Table) bool { return own.Family == t.Family && own.Name == t.Name })
}

// kubeProxyReasons returns why the rules of Kubernetes' kube-proxy sent a packet to an endpoint, and what they did
// about its source. They have a comment, or the chain tells.
func kubeProxyReasons(dialed *compiler.Frontend, fate *evaluator.Fate) (Reason, SourceReason) {
	if dialed == nil {
		return ReasonOther, ""
	}
	reason, source := ReasonServed, SourceClusterClient
	for _, s := range fate.Path {
		if s.Rule == nil {
			continue
		}
		rule := s.Rule.String()
		marks := strings.Contains(rule, "meta mark set") || strings.Contains(rule, "jump mark-for-masquerade")
		kind, _, _ := strings.Cut(s.Chain.Name, "-")
		switch {
		case strings.Contains(rule, "@hairpin-connections"), kind == "endpoint" && marks:
			return reason, SourceHairpin
		case strings.Contains(rule, "@affinity-") && strings.Contains(rule, " goto "):
			reason = ReasonAffinity
		case kind == "external" && strings.Contains(rule, "goto local-"):
			source = SourcePolicyLocal
		case !marks:
		case kind == "external" && strings.Contains(rule, "fib saddr type"):
			source = SourceNode
		case kind == "external":
			source = SourcePolicyCluster
		case (kind == "service" || kind == "local" || kind == "services") && strings.Contains(rule, "!="):
			source = SourceOutside
		case kind == "service" || kind == "local" || kind == "services":
			source = SourceAll
		}
	}
	return reason, source
}

// describeKubeProxys is describe for a chain of Kubernetes' kube-proxy.
func describeKubeProxys(f *compiler.Frontend, chain string) []string {
	switch {
	case f.Kind == compiler.FrontendClusterIP:
		return notLocalMasqueraded
	case f.Masquerade:
		return []string{"source masqueraded"}
	case chain == f.ShortCircuit:
		return []string{"the cluster's own clients: source kept", "this node: source masqueraded"}
	}
	return []string{"clients outside the cluster", "source kept"}
}
