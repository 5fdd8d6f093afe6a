package verb

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/nft"
)

// droppedMark is the mark of packets that the kubelet's rules dropped before Kubernetes 1.27, for kube-proxy and for
// anybody.
const droppedMark = 0x8000

// checkOthers looks at the rules of other programs.
func (p *preflight) checkOthers() error {
	before, after := p.masqueradeBits()
	others, err := leftovers.FindOthers(p.ctx, before|after|droppedMark, func(t *nft.Table) bool { return t.Name == compiler.TableName })
	if err != nil {
		p.out.add("rules", levelLook, strings.ReplaceAll(err.Error(), "\n", "; "), "rules of other programs that depend on kube-proxy's may be missing here", "")
	}
	p.checkUses(others.Uses, before, after)
	p.checkDrops(others.Drops)
	p.nameNeighbours(&others)
	return nil
}

func (p *preflight) checkUses(uses []leftovers.Use, before, after uint32) {
	var jumps, sets, compares, drops []string
	for _, u := range uses {
		mark := fmt.Sprintf("%s (0x%x)", u.Chain, u.Mark)
		switch {
		case u.To != "":
			jumps = append(jumps, u.Chain+" to "+u.To)
		case u.Mark&(before|after) == 0:
			drops = append(drops, u.Chain)
		case u.Sets:
			sets = append(sets, mark)
		default:
			compares = append(compares, mark)
		}
	}
	if len(jumps) > 0 {
		p.out.add("rules", levelLook, "rules of other programs lead to chains of kube-proxy: "+some(jumps), "the proxy keeps these chains, and nobody changes their rules any more",
			"reconfigure that program: the CNI plugin portmap needs no externalSetMarkChain")
	}
	if len(sets) > 0 {
		p.out.add("mark", levelLook, "rules of other programs set bits of the masquerade mark: "+some(sets), fmt.Sprintf("the proxy marks packets with 0x%x, and masquerades those that have it in postrouting: others get it, or lose it, by such a rule", after),
			"if these programs mean another thing by the bit, give one of the two another: masqueradeBit")
	}
	if len(compares) > 0 {
		l, do := levelGo, ""
		if before != after {
			l, do = levelLook, "set nftables.masqueradeBit to the bit that the old mode has"
		}
		p.out.add("mark", l, "rules of other programs compare bits of the masquerade mark: "+some(compares),
			fmt.Sprintf("kube-proxy marks packets to masquerade with 0x%x, and this proxy with 0x%x", before, after), do)
	}
	if len(drops) > 0 {
		p.out.add("mark", levelGo, "rules of other programs have to do with mark 0x8000: "+some(drops), "the kubelet dropped such packets until Kubernetes 1.27; no proxy does", "")
	}
	if before != after && len(sets)+len(compares) == 0 {
		p.out.add("mark", levelGo, fmt.Sprintf("the masquerade mark changes from 0x%x to 0x%x", before, after), "no rule of another program has to do with either", "")
	}
}

// checkDrops names base chains that drop. In mode iptables, KUBE-FORWARD accepts forwarded packets of Services there, and
// the proxy accepts packets in its own chains only, as every mode nftables does.
func (p *preflight) checkDrops(drops []leftovers.Drop) {
	names := map[nft.Hook][]string{}
	for _, d := range drops {
		if !d.AcceptsTranslated || d.Hook == nft.HookInput {
			names[d.Hook] = append(names[d.Hook], d.Chain)
		}
	}
	if list := names[nft.HookForward]; len(list) > 0 {
		l := levelGo
		if p.old == v1alpha2.ModeIPTables || p.old == v1alpha2.ModeIPVS {
			l = levelLook
		}
		p.out.add("firewall", l, "forwarded packets that no rule accepts are dropped by "+some(list), "KUBE-FORWARD accepts those of Services in mode iptables and ipvs, and goes",
			"see that another rule accepts them, such as: iptables -A FORWARD -m conntrack --ctstate DNAT,ESTABLISHED,RELATED -j ACCEPT")
	}
	if list := names[nft.HookInput]; len(list) > 0 {
		p.out.add("firewall", levelLook, "packets to this node that no rule accepts are dropped by "+some(list), "KUBE-NODEPORTS accepts health check node ports in mode iptables, and goes",
			"see that the firewall accepts the ports of health checks, and node ports of endpoints in the node's network")
	}
}

// neighbours are programs by what they leave on a node: interfaces, chains and tables, each by the beginning of its name.
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

func (p *preflight) nameNeighbours(others *leftovers.Others) {
	var interfaces, found []string
	if list, err := net.Interfaces(); err == nil {
		for _, i := range list {
			interfaces = append(interfaces, i.Name)
		}
	}
	begins := func(names []string, prefix string) bool {
		return prefix != "" && slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, prefix) })
	}
	for _, n := range neighbours {
		if begins(interfaces, n.interfaces) || begins(others.Chains, n.chain) || begins(others.Tables, n.tables) {
			found = append(found, n.name)
		}
	}
	if len(found) > 0 {
		p.out.add("neighbours", levelGo, strings.Join(found, ", "), "docs/compatibility.md says what each expects of a proxy", "")
	}
	if slices.Contains(interfaces, kubeRouterServices) {
		p.out.add("neighbours", levelStop, "the interface "+kubeRouterServices+": kube-router serves Services on this node", "two proxies would serve each Service",
			"run kube-router with --run-service-proxy=false, or keep it and do not install this proxy")
	}
}
