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
		marks := marks(s.Rule) || leads(s.Rule, "mark-for-masquerade")
		looksUp := func(prefix string) bool {
			return has(s.Rule, func(in nft.InSet) bool { return strings.HasPrefix(in.Set, prefix) })
		}
		kind, _, _ := strings.Cut(s.Chain.Name, "-")
		switch {
		case looksUp("hairpin-connections"), kind == "endpoint" && marks:
			return reason, SourceHairpin
		case looksUp("affinity-") && s.Decision.Kind == nft.VerdictGoto:
			reason = ReasonAffinity
		case kind == "external" && leads(s.Rule, "local-"):
			source = SourcePolicyLocal
		case !marks:
		case kind == "external" && has(s.Rule, func(m nft.Match) bool { return m.Field == nft.FibSaddrType }):
			source = SourceNode
		case kind == "external":
			source = SourcePolicyCluster
		case (kind == "service" || kind == "local" || kind == "services") && has(s.Rule, func(m nft.Match) bool { return m.Op == nft.NotEqual }):
			source = SourceOutside
		case kind == "service" || kind == "local" || kind == "services":
			source = SourceAll
		}
	}
	return reason, source
}

// leads reports whether a rule jumps or goes to a chain whose name begins with prefix.
func leads(r *nft.Rule, prefix string) bool {
	return has(r, func(v nft.Verdict) bool { return strings.HasPrefix(v.Chain, prefix) })
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
