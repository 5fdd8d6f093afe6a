package verb

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// checkNodePorts looks for addresses on which node ports answer now and will not afterwards, and for connections to them.
// By default mode nftables serves node ports on the Node's own addresses, and the other modes serve them on all addresses.
func (p *preflight) checkNodePorts() {
	if p.old != v1alpha2.ModeIPTables && p.old != v1alpha2.ModeIPVS {
		return
	}
	var named []string
	if p.settings != nil {
		named = p.settings.NodePortAddresses
	}
	if len(named) > 0 {
		p.fine(fmt.Sprintf("nodePortAddresses is %q before and after", named), "", "")
	}
	ports := p.nodePorts()
	if p.objects != nil && len(ports) == 0 {
		p.fine("no Service has a node port", "", "")
		return
	}
	lost := p.lostAddresses(named)
	if len(lost) == 0 {
		return
	}
	used, example, err := connectionsTo(p.ctx, lost, ports)
	if err != nil {
		p.err = err
		return
	}
	seen := "connection tracking has no connection there at this moment"
	if used > 0 {
		seen = fmt.Sprintf("connections there that connection tracking has: %d, for example %s", used, example)
	}
	do := `set nodePortAddresses: ["primary"] if no client uses them, or the CIDRs that clients use; ` +
		`"0.0.0.0/0" and "::/0" for all but loopback`
	if slices.Contains(lost, localhost) {
		do += `; add "localhost" for TCP on 127.0.0.1`
	}
	p.look("node ports answer now on "+some(lost, shownNames)+", and will not; "+seen,
		"by default mode nftables serves node ports on the Node's own addresses only", do)
}

// lostAddresses returns the addresses of this network namespace that node ports lose: all but the primary ones if
// nodePortAddresses names none, and perhaps loopback.
func (p *preflight) lostAddresses(named []string) (lost []netip.Addr) {
	loopback := true
	if p.settings != nil {
		c := p.settings.Config
		isNamed := func(n netip.Prefix) bool { return n.Contains(localhost) }
		loopback = p.old == v1alpha2.ModeIPTables && ptr.Deref(c.IPTables.LocalhostNodePorts, false) &&
			len(config.LoopbackNodePorts(c)) == 0 &&
			(len(named) == 0 || slices.ContainsFunc(config.ParseCIDRs(named), isNamed))
	}
	if loopback {
		lost = append(lost, localhost)
	}
	if len(named) > 0 {
		return lost
	}
	primary := p.primaryAddresses()
	for _, i := range p.interfaces {
		if i.Name == "kube-ipvs0" {
			continue // it has the addresses of Services
		}
		for _, prefix := range i.Addresses {
			if a := prefix.Addr(); !a.IsLoopback() && !a.IsLinkLocalUnicast() && !slices.Contains(primary, a) {
				lost = append(lost, a)
			}
		}
	}
	return lost
}

// primaryAddresses returns the Node's own addresses. Without the Node it guesses them: the source addresses of packets to
// other networks.
func (p *preflight) primaryAddresses() (out []netip.Addr) {
	if node := p.nodeObject(); node != nil {
		return tracker.ParseNode(node).IPs
	}
	if p.settings != nil {
		out = config.NodeIPOverride(p.settings.Config)
	}
	for _, elsewhere := range []string{"192.0.2.1", "2001:db8::1"} {
		routes, err := netlink.RouteGet(net.ParseIP(elsewhere))
		if err != nil || len(routes) == 0 {
			continue
		}
		if a, is := netip.AddrFromSlice(routes[0].Src); is {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// nodeObject returns the Node; nil if it is not known.
func (p *preflight) nodeObject() *corev1.Node {
	if p.objects == nil {
		return nil
	}
	i := slices.IndexFunc(p.objects.Nodes, func(n *corev1.Node) bool { return n.Name == p.out.Node })
	if i < 0 {
		return nil
	}
	return p.objects.Nodes[i]
}

// The range in which a cluster chooses node ports, unless its API server says otherwise.
const firstNodePort, lastNodePort = 30000, 32767

// nodePorts returns the node ports of all Services, as far as these are known.
func (p *preflight) nodePorts() map[uint16]bool {
	ports := map[uint16]bool{}
	if p.objects == nil {
		return ports
	}
	for _, s := range p.objects.Services {
		for _, port := range s.Spec.Ports {
			if port.NodePort != 0 {
				ports[uint16(port.NodePort)] = true
			}
		}
	}
	return ports
}

// connectionsTo counts translated connections to node ports of addresses, and returns one of them as "198.51.100.7 to
// 10.0.0.5:30080". If no ports are known, the usual range counts.
func connectionsTo(ctx context.Context, addrs []netip.Addr, ports map[uint16]bool) (count int, example string, err error) {
	conn, err := conntrack.Dial(0)
	if err != nil {
		return 0, "", err
	}
	wanted := func(port uint16) bool {
		return ports[port] || len(ports) == 0 && port >= firstNodePort && port <= lastNodePort
	}
	for _, family := range model.Families {
		if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return model.FamilyOf(a) == family }) {
			continue
		}
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			err := conn.Each(ctx, family, protocol, func(f conntrack.Flow) {
				dialed := f.Dialed.Addr()
				lost := slices.Contains(addrs, dialed) || dialed.IsLoopback() && slices.Contains(addrs, localhost)
				if lost && f.Translated() && wanted(f.Dialed.Port()) {
					count++
					if example == "" {
						example = fmt.Sprintf("%s to %s", f.Source.Addr(), f.Dialed)
					}
				}
			})
			if err != nil {
				return 0, "", err
			}
		}
	}
	return count, example, nil
}

// checkIPVS names settings of mode ipvs that have no counterpart.
func (p *preflight) checkIPVS() {
	if p.settings == nil || p.settings.KubeProxyMode != v1alpha2.ModeIPVS && p.old != v1alpha2.ModeIPVS {
		return
	}
	c := &p.settings.Config.IPVS
	if c.Scheduler != "" && c.Scheduler != "rr" {
		p.look("ipvs.scheduler is "+c.Scheduler, "the proxy draws an endpoint at random for each connection",
			"for one client, one endpoint (sh, mh, dh): sessionAffinity ClientIP in the Service; "+
				"weights and least connections have no counterpart")
	}
	if c.StrictARP {
		p.fine("ipvs.strictARP is true",
			"only mode ipvs needs it, for MetalLB and kube-vip: it puts addresses of Services on the node",
			"nothing: remove it after the swap")
	}
	if c.TCPTimeout.Duration+c.TCPFinTimeout.Duration+c.UDPTimeout.Duration > 0 {
		p.look("ipvs has timeouts of its own (tcpTimeout, tcpFinTimeout, udpTimeout)",
			"connections are then in connection tracking, with its timeouts",
			"set conntrack.tcpEstablishedTimeout and conntrack.udpStreamTimeout")
	}
	if len(c.ExcludeCIDRs) > 0 {
		p.fine("ipvs.excludeCIDRs is "+some(c.ExcludeCIDRs, shownNames),
			"somebody else has virtual servers there; the proxy leaves them alone", "")
	}
	p.fine("in mode ipvs the node has the addresses of all Services, which answer pings", "",
		"programs on the node must not bind to addresses of Services, or ping them")
}

// servicesThat names the Services that match; none if the objects are not known.
func (p *preflight) servicesThat(match func(*corev1.Service) bool) (names []string) {
	if p.objects == nil {
		return nil
	}
	for _, s := range p.objects.Services {
		if match(s) {
			names = append(names, s.Namespace+"/"+s.Name)
		}
	}
	return names
}

// checkServices names Services that the swap changes, or that the proxy serves in another way.
func (p *preflight) checkServices() {
	if p.objects == nil {
		p.fine("Services were not looked at", "", "give --kubeconfig and --node")
		return
	}
	external := p.servicesThat(func(s *corev1.Service) bool { return len(s.Spec.ExternalIPs) > 0 })
	affine := p.servicesThat(func(s *corev1.Service) bool { return s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP })
	datagrams := p.servicesThat(func(s *corev1.Service) bool {
		return slices.ContainsFunc(s.Spec.Ports, func(port corev1.ServicePort) bool {
			return port.NodePort != 0 && port.Protocol != corev1.ProtocolTCP && port.Protocol != ""
		})
	})
	how := ruledump.Compilation{Node: p.out.Node, Warn: func(text string) { p.look(text, "", "") }}
	ignoresExternal, loopback := false, false
	if p.settings != nil {
		c := *p.settings.Config
		ignoresExternal = config.Tracker(&c).IgnoreExternalIPs
		loopback = p.old == v1alpha2.ModeIPTables && len(config.LoopbackNodePorts(&c)) > 0
		c.Mode = v1alpha2.ModeNFTables
		v1alpha2.SetDefaults(&c)
		how.Proxy = &ruledump.Proxy{Config: &c}
	}
	if len(datagrams) > 0 && loopback {
		p.look("these have node ports of UDP or SCTP: "+some(datagrams, shownNames),
			"on loopback the proxy serves TCP alone, and refuses these", "let clients on the node dial its own address")
	}
	switch {
	case len(external) == 0:
	case ignoresExternal:
		p.look("these use externalIPs: "+some(external, shownNames), "the gate AllowServiceExternalIPs is off: nobody serves them then",
			"remove the gate, or use a load balancer")
	default:
		p.fine("these use externalIPs: "+some(external, shownNames), "they are served as before; an external IP never takes over "+
			"another Service's ClusterIP or load balancer IP", "")
	}
	if len(affine) > 0 && p.old != "" {
		p.fine("these have session affinity: "+some(affine, shownNames),
			"a client without a connection in connection tracking may get another endpoint, once", "")
	}
	_, p.err = ruledump.FromObjects(ruledump.Cluster, p.objects, how)
}
