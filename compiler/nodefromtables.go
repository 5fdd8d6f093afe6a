package compiler

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// kubeProxyNodePortIPs is the set of kube-proxy's nftables mode with the addresses on which node ports answer.
const kubeProxyNodePortIPs = "nodeport-ips"

// NodeFromTables returns the Node for which tables were compiled, as far as they tell: IPs has an address of each
// family on which node ports answer, and PodCIDRs the networks of the cluster's clients. Tables of kube-proxy's
// nftables mode tell the addresses only. Nil tables are skipped. With it, a proxy that starts while its Node has no
// addresses keeps node ports working.
func NodeFromTables(tables ...*nft.Table) model.Node {
	var node model.Node
	for _, t := range tables {
		if t == nil {
			continue
		}
		if ips := nodePortIPs(t); len(ips) > 0 {
			node.IPs = append(node.IPs, ips[0])
		}
		node.PodCIDRs = append(node.PodCIDRs, matched(t, chainShortCircuit, t.Family.Saddr(), nil)...)
	}
	return node
}

// nodePortIPs returns single addresses on which node ports answer.
func nodePortIPs(t *nft.Table) (ips []netip.Addr) {
	if set := t.Set(kubeProxyNodePortIPs); set != nil {
		for _, e := range set.Elements() {
			if ip, ok := netip.AddrFromSlice([]byte(e.Key)); ok {
				ips = append(ips, ip)
			}
		}
		return ips
	}
	for _, p := range matched(t, chainServices, t.Family.Daddr(), nft.Goto(chainNodePorts)) {
		if p.IsSingleIP() {
			ips = append(ips, p.Addr())
		}
	}
	return ips
}

// matched returns the prefixes that a field is compared with in the rules of a chain that contain the statement end;
// nil means all rules.
func matched(t *nft.Table, chain string, field nft.Field, end nft.Statement) (prefixes []netip.Prefix) {
	c := t.Chain(chain)
	if c == nil {
		return nil
	}
	for _, rule := range c.Rules {
		if end != nil && !slices.Contains(rule.Statements, end) {
			continue
		}
		for _, statement := range rule.Statements {
			m, _ := statement.(nft.Match)
			if prefix, ok := m.Value.(netip.Prefix); ok && m.Field == field && m.Op == nft.Equal {
				prefixes = append(prefixes, prefix)
			}
		}
	}
	return prefixes
}
