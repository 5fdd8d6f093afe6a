package verb

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/nft"
)

// droppedMark is the packet mark that the kubelet's rules dropped before Kubernetes 1.27. kube-proxy set it, and other
// programs could.
const droppedMark = 0x8000

// checkRules reads the rules of other programs, which later checks use too, and names rules that jump to kube-proxy's
// chains.
func (p *preflight) checkRules() {
	before, after := p.masqueradeBits()
	var err error
	if p.others, err = leftovers.FindOthers(p.ctx, before|after|droppedMark, compiler.TableName); err != nil {
		p.look(oneLine(err), "rules of other programs that depend on kube-proxy's may be missing here", "")
	}
	if len(p.others.Kubelet) > 0 {
		p.out.add(finding{"leftovers", levelGo, "chains of the kubelet stay: " + some(p.others.Kubelet, shownNames),
			"they are not kube-proxy's, though their names begin with KUBE-, and no proxy removes them", ""})
	}
	var jumps []string
	for _, u := range p.others.Uses {
		if u.To != "" {
			jumps = append(jumps, u.Chain+" to "+u.To)
		}
	}
	if len(jumps) > 0 {
		p.look("rules of other programs lead to chains of kube-proxy: "+some(jumps, shownNames),
			"the proxy keeps these chains, and nobody changes their rules any more",
			"reconfigure that program: the CNI plugin portmap needs no externalSetMarkChain")
	}
	if files := leftovers.MarkChainUsers(cniDir); len(files) > 0 {
		p.look("externalSetMarkChain is KUBE-MARK-MASQ in "+some(files, shownNames),
			"without that chain portmap fails, and new pods with a host port do not start. Only a proxy that can read "+
				leftovers.CNIDir+" keeps it, and nobody makes it again when the node has restarted",
			"remove externalSetMarkChain from these files: portmap has a chain of its own")
	}
}

// masqueradeBits returns the bits of the packet mark that the old and the new proxy use to masquerade.
func (p *preflight) masqueradeBits() (before, after uint32) {
	if p.settings == nil {
		return 1 << 14, 1 << 14
	}
	c := p.settings.Config
	before, after = 1<<*c.NFTables.MasqueradeBit, 1<<*c.NFTables.MasqueradeBit
	switch p.old {
	case v1alpha2.ModeIPTables:
		before = 1 << *c.IPTables.MasqueradeBit
	case v1alpha2.ModeIPVS:
		before = 1 << *c.IPVS.MasqueradeBit
	}
	return before, after
}

// checkMark names rules of other programs that have to do with the masquerade mark.
func (p *preflight) checkMark() {
	before, after := p.masqueradeBits()
	var sets, compares, drops []string
	for _, u := range p.others.Uses {
		mark := fmt.Sprintf("%s (0x%x)", u.Chain, u.Mark)
		switch {
		case u.To != "":
		case u.Mark&(before|after) == 0:
			drops = append(drops, u.Chain)
		case u.Sets&(before|after) != 0:
			sets = append(sets, mark)
		default:
			compares = append(compares, mark)
		}
	}
	if len(sets) > 0 {
		p.look("rules of other programs set bits of the masquerade mark: "+some(sets, shownNames),
			fmt.Sprintf("the proxy marks packets with 0x%x, and masquerades those that have it in postrouting: "+
				"others get it, or lose it, by such a rule", after),
			"if these programs mean another thing by the bit, give one of the two another: masqueradeBit")
	}
	if len(compares) > 0 {
		l, do := levelGo, ""
		if before != after {
			l, do = levelLook, "set nftables.masqueradeBit to the bit that the old mode has"
		}
		p.add(l, "rules of other programs compare bits of the masquerade mark: "+some(compares, shownNames),
			fmt.Sprintf("kube-proxy marks packets to masquerade with 0x%x, and this proxy with 0x%x", before, after), do)
	}
	if len(drops) > 0 {
		p.fine("rules of other programs have to do with mark 0x8000: "+some(drops, shownNames),
			"the kubelet dropped such packets until Kubernetes 1.27; no proxy does", "")
	}
	if before != after && len(sets)+len(compares) == 0 {
		p.fine(fmt.Sprintf("the masquerade mark changes from 0x%x to 0x%x", before, after),
			"no rule of another program has to do with either", "")
	}
}

// checkFirewall names base chains that drop each packet that no rule accepts. In modes iptables and ipvs, KUBE-FORWARD
// accepts packets of Services inside the firewall's own chain. A verdict accept of mode nftables, here and in kube-proxy,
// ends only the proxy's own chain, and the firewall's chain still sees the packet.
func (p *preflight) checkFirewall() {
	names := map[nft.Hook][]leftovers.Drop{}
	for _, d := range p.others.Drops {
		if !d.AcceptsTranslated || d.Hook == nft.HookInput {
			names[d.Hook] = append(names[d.Hook], d)
		}
	}
	if list := names[nft.HookForward]; len(list) > 0 {
		l := levelGo
		if p.old == v1alpha2.ModeIPTables || p.old == v1alpha2.ModeIPVS {
			l = levelLook
		}
		p.add(l, "forwarded packets that no rule accepts are dropped by "+some(list, shownNames),
			"KUBE-FORWARD accepts those of Services in mode iptables and ipvs, and goes", "see that another rule accepts "+
				"them, such as: iptables -I FORWARD -m conntrack --ctstate DNAT,ESTABLISHED,RELATED -j ACCEPT")
	}
	if list := names[nft.HookInput]; len(list) > 0 {
		p.look("packets to this node that no rule accepts are dropped by "+some(list, shownNames),
			"KUBE-NODEPORTS accepts health check node ports in mode iptables, and goes",
			"see that the firewall accepts the ports of health checks, and node ports of endpoints in the node's network")
	}
}

// neighbours are programs by what they leave on a node: interfaces, chains and tables,
// each by the beginning of its name.
var neighbours = []struct {
	name                      string
	interfaces, chain, tables string
}{
	{"Antrea", "antrea-gw", "ANTREA-", "ip antrea"},
	{"Calico", "cali", "cali-", "ip calico"},
	{"Cilium", "cilium_", "CILIUM_", ""},
	{"Docker", "docker0", "DOCKER", ""},
	{"firewalld", "", "", "inet firewalld"},
	{"Flannel", "flannel", "FLANNEL-", "ip flannel"},
	{"Istio", "", "ISTIO_", ""},
	{"kindnet", "", "KINDNET", "inet kindnet"},
	{"kube-router", "kube-bridge", "KUBE-ROUTER-", ""},
	{"NodeLocal DNSCache", "nodelocaldns", "", ""},
	{"OVN-Kubernetes", "ovn-k8s-", "OVN-KUBE-", "inet ovn-kubernetes"},
	{"portmap (CNI)", "", "CNI-HOSTPORT-", "inet cni_hostport"},
	{"ufw", "", "ufw-", ""},
}

// kubeRouterServices is the interface on which kube-router's service proxy has the addresses of Services.
const kubeRouterServices = "kube-dummy-if"

func (p *preflight) checkNeighbours() {
	begins := func(names []string, prefix string) bool {
		return prefix != "" && slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, prefix) })
	}
	var names, found []string
	for _, i := range p.interfaces {
		names = append(names, i.Name)
	}
	for _, n := range neighbours {
		if begins(names, n.interfaces) || begins(p.others.Chains, n.chain) || begins(p.others.Tables, n.tables) {
			found = append(found, n.name)
		}
	}
	if len(found) > 0 {
		p.fine(strings.Join(found, ", "), "docs/compatibility.md says what each expects of a proxy", "")
	}
	if slices.Contains(names, kubeRouterServices) {
		p.stop("the interface "+kubeRouterServices+": kube-router serves Services on this node",
			"two proxies would serve each Service",
			"run kube-router with --run-service-proxy=false, or keep it and do not install this proxy")
	}
}
