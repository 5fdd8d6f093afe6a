package integration

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"pgregory.net/rapid"
)

// place is what the random models of one IP family are made of. Services claim each other's
// addresses and those of nodes and pods.
type place struct {
	family model.Family
	// endpoints is two pods on the node under test, two on the other node, the client, both
	// nodes and the host outside.
	endpoints                                    []netip.Addr
	clusterIPs, externalIPs, loadBalancers       []netip.Addr
	unassigned                                   netip.Addr
	senders                                      []flows.Origin
	sources, nodePortRanges, podRanges, services []netip.Prefix
}

var places = []*place{
	{
		family:         model.IPv4,
		endpoints:      parseAddrs("10.244.1.5", "10.244.1.6", "10.244.2.5", "10.244.2.6", "10.244.1.250", "192.168.0.1", "192.168.0.2", "198.51.100.7"),
		clusterIPs:     parseAddrs("10.96.0.1", "10.96.0.2", "10.96.0.3"),
		externalIPs:    parseAddrs("203.0.113.1", "203.0.113.2", "192.168.0.1", "192.168.0.2", "10.96.0.1", "10.244.1.6"),
		loadBalancers:  parseAddrs("192.0.2.1", "203.0.113.1", "192.168.0.1"),
		unassigned:     netip.MustParseAddr("10.96.0.99"),
		senders:        []flows.Origin{flows.FromClient, flows.FromNode, flows.FromOutside, flows.FromOutside2, flows.FromRemote, "10.244.1.5", "10.244.2.5"},
		sources:        parsePrefixes("10.244.1.250/32", "10.244.0.0/16", "198.51.100.7/32", "198.51.100.0/29", "192.168.0.0/24", "192.168.0.1/32", "0.0.0.0/0"),
		nodePortRanges: parsePrefixes("0.0.0.0/0", "192.168.0.0/16", "10.244.1.0/24", "127.0.0.0/8"),
		podRanges:      parsePrefixes("10.244.0.0/16"),
		services:       parsePrefixes("10.96.0.0/16"),
	},
	{
		family:         model.IPv6,
		endpoints:      parseAddrs("fd00:10:244:1::5", "fd00:10:244:1::6", "fd00:10:244:2::5", "fd00:10:244:2::6", "fd00:10:244:1::250", "fd00:1::1", "fd00:1::2", "2001:db8:51::7"),
		clusterIPs:     parseAddrs("fd00:10:96::1", "fd00:10:96::2", "fd00:10:96::3"),
		externalIPs:    parseAddrs("2001:db8:113::1", "2001:db8:113::2", "fd00:1::1", "fd00:1::2", "fd00:10:96::1", "fd00:10:244:1::6"),
		loadBalancers:  parseAddrs("2001:db8:192::1", "2001:db8:113::1", "fd00:1::1"),
		unassigned:     netip.MustParseAddr("fd00:10:96::99"),
		senders:        []flows.Origin{flows.FromClient, flows.FromNode, flows.FromOutside, flows.FromOutside2, flows.FromRemote, "fd00:10:244:1::5", "fd00:10:244:2::5"},
		sources:        parsePrefixes("fd00:10:244:1::250/128", "fd00:10:244::/48", "2001:db8:51::7/128", "2001:db8:51::/125", "fd00:1::/64", "fd00:1::1/128", "::/0"),
		nodePortRanges: parsePrefixes("::/0", "fd00:1::/32", "fd00:10:244:1::/64", "::1/128"),
		podRanges:      parsePrefixes("fd00:10:244::/48"),
		services:       parsePrefixes("fd00:10:96::/48"),
	},
}

// Some ports are frontends, node ports and endpoints at once.
var (
	servicePorts  = []uint16{80, 81, 8080}
	nodePorts     = []uint16{30000, 30001, 8080}
	endpointPorts = []uint16{8080, 8081}
	protocols     = []model.Protocol{model.TCP, model.UDP, model.SCTP}
)

// affinityTimeout is longer than any test runs.
const affinityTimeout = 3 * time.Hour

func parseAddrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func parsePrefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// allEndpoints is what the lab has to serve for any of the models.
func allEndpoints() []flows.Endpoint {
	var out []flows.Endpoint
	for _, p := range places {
		for i, addr := range p.endpoints {
			e := flows.Endpoint{Addr: addr}
			if i < 2 {
				e.Node = lab.NodeName
			}
			for _, port := range endpointPorts {
				for _, protocol := range []flows.Protocol{flows.TCP, flows.UDP, flows.SCTP} {
					e.Ports = append(e.Ports, flows.Port{Protocol: protocol, Number: port})
				}
			}
			out = append(out, e)
		}
	}
	return out
}

// generator draws the choices that a model is made of.
type generator struct{ *rapid.T }

func (d generator) maybe(of int) bool { return rapid.IntRange(0, of-1).Draw(d.T, "maybe") == 0 }

func one[T any](d generator, from []T) T { return rapid.SampledFrom(from).Draw(d.T, "one") }

// some draws up to n of what there is, sorted and each once; nil for none.
func some[T any](d generator, from []T, n int, compare func(T, T) int) []T {
	var out []T
	for range rapid.IntRange(0, n).Draw(d.T, "some") {
		out = append(out, one(d, from))
	}
	slices.SortFunc(out, compare)
	return slices.CompactFunc(out, func(a, b T) bool { return compare(a, b) == 0 })
}

func (d generator) config() compiler.Config {
	c := compiler.Default()
	c.MasqueradeBit = uint8(rapid.IntRange(0, 31).Draw(d.T, "bit"))
	c.MasqueradeAll = d.maybe(5)
	c.AffinityHash = d.maybe(3)
	c.CountServices = d.maybe(3)
	c.NodePortAddresses.Primary = !d.maybe(3)
	for _, p := range places {
		c.NodePortAddresses.CIDRs = append(c.NodePortAddresses.CIDRs, some(d, p.nodePortRanges, 1, netip.Prefix.Compare)...)
		c.DetectLocal.CIDRs = append(c.DetectLocal.CIDRs, some(d, p.podRanges, 1, netip.Prefix.Compare)...)
	}
	c.DetectLocal.NodePodCIDRs = d.maybe(4)
	if d.maybe(4) {
		c.DetectLocal.Interface = one(d, []string{"veth*", "eth0"})
	}
	return c
}

// model draws a whole model.
func (d generator) model() *model.Changes {
	changes := &model.Changes{Full: true, Node: &model.Node{Name: lab.NodeName}, ServiceCIDRsChanged: true, Ports: map[model.PortID]*model.ServicePort{}}
	for _, p := range places {
		if !d.maybe(6) {
			changes.Node.IPs = append(changes.Node.IPs, lab.NodeAddrs.Like(p.unassigned))
			changes.Node.PodCIDRs = append(changes.Node.PodCIDRs, lab.LocalPodNetworks[len(changes.Node.PodCIDRs)])
		}
		changes.ServiceCIDRs = append(changes.ServiceCIDRs, some(d, p.services, 1, netip.Prefix.Compare)...)
		for range rapid.IntRange(1, 5).Draw(d.T, "ports") {
			port := d.port(p)
			changes.Ports[port.ID] = port
		}
	}
	return changes
}

func (d generator) port(p *place) *model.ServicePort {
	port := &model.ServicePort{
		ID: model.PortID{
			Namespace: "default", Service: one(d, []string{"a", "b", "c"}), Port: one(d, []string{"", "http"}),
			Protocol: one(d, protocols), Family: p.family,
		},
		ClusterIP:       one(d, p.clusterIPs),
		Port:            one(d, servicePorts),
		InternalPolicy:  model.TrafficPolicy(rapid.IntRange(0, 1).Draw(d.T, "internal")),
		ExternalPolicy:  model.TrafficPolicy(rapid.IntRange(0, 1).Draw(d.T, "external")),
		ExternalIPs:     some(d, p.externalIPs, 2, netip.Addr.Compare),
		LoadBalancerIPs: some(d, p.loadBalancers, 2, netip.Addr.Compare),
	}
	if !d.maybe(3) {
		port.NodePort = one(d, nodePorts)
	}
	if d.maybe(3) {
		port.LoadBalancerSourceRanges = some(d, p.sources, 3, netip.Prefix.Compare)
	}
	if d.maybe(3) {
		port.AffinityTimeout = affinityTimeout
	}
	port.Cluster = d.endpoints(p, p.endpoints)
	port.Local = d.endpoints(p, append(p.endpoints[:2:2], p.endpoints[4:6]...))
	return port
}

func (d generator) endpoints(p *place, from []netip.Addr) []model.Endpoint {
	var out []model.Endpoint
	for _, addr := range some(d, from, 3, netip.Addr.Compare) {
		out = append(out, model.Endpoint{AddrPort: netip.AddrPortFrom(addr, one(d, endpointPorts))})
	}
	return out
}

// flows draws n flows at most, no two of them alike: connections of both could add the
// same client's endpoint.
func (d generator) flows(m *model.Changes, n int) []flows.Flow {
	var out []flows.Flow
	for range n {
		if f := d.flow(one(d, places), m); !slices.ContainsFunc(out, func(o flows.Flow) bool { return f.From == o.From && f.To == o.To && f.Protocol == o.Protocol }) {
			out = append(out, f)
		}
	}
	return out
}

// flow draws who sends where: to a frontend of the model, or to what may be none.
func (d generator) flow(p *place, m *model.Changes) flows.Flow {
	f := flows.Flow{From: one(d, p.senders), Protocol: flows.Protocol(one(d, protocols).String())}
	addrs := slices.Concat(p.clusterIPs, p.externalIPs, p.loadBalancers, p.endpoints,
		[]netip.Addr{p.unassigned, lab.NodeAddrs.Like(p.unassigned), lab.GatewayAddrs.Like(p.unassigned)})
	if f.From == flows.FromNode {
		addrs = append(addrs, loopbackLike(p.unassigned))
	}
	f.To = netip.AddrPortFrom(one(d, addrs), one(d, slices.Concat(servicePorts, nodePorts, endpointPorts)))
	if frontends := frontendsOf(p, m); len(frontends) > 0 && !d.maybe(3) {
		chosen := one(d, frontends)
		f.To, f.Protocol = chosen.To, chosen.Protocol
	}
	if d.maybe(20) {
		f.Protocol, f.To = flows.ICMP, netip.AddrPortFrom(f.To.Addr(), 0)
	}
	return f
}

func loopbackLike(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return netip.MustParseAddr("127.0.0.1")
	}
	return netip.IPv6Loopback()
}

// frontendsOf returns where a model's Services can be dialled, in an order that depends on nothing but the model.
func frontendsOf(p *place, m *model.Changes) []flows.Flow {
	var out []flows.Flow
	for _, port := range m.Ports {
		if port.ID.Family != p.family {
			continue
		}
		add := func(port *model.ServicePort, number uint16, addrs ...netip.Addr) {
			for _, addr := range addrs {
				out = append(out, flows.Flow{To: netip.AddrPortFrom(addr, number), Protocol: flows.Protocol(port.ID.Protocol.String())})
			}
		}
		add(port, port.Port, port.ClusterIP)
		add(port, port.Port, port.ExternalIPs...)
		add(port, port.Port, port.LoadBalancerIPs...)
		if port.NodePort != 0 {
			add(port, port.NodePort, lab.NodeAddrs.Like(port.ClusterIP), lab.GatewayAddrs.Like(port.ClusterIP))
		}
	}
	slices.SortFunc(out, func(a, b flows.Flow) int { return compareTargets(a, b) })
	return out
}

func compareTargets(a, b flows.Flow) int {
	if c := a.To.Compare(b.To); c != 0 {
		return c
	}
	return slices.Compare([]byte(a.Protocol), []byte(b.Protocol))
}
