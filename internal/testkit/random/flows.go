package random

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
)

// Flows draws n flows at most, no two of them alike: connections of both could add the same client's endpoint.
func (c Choose) Flows(places []*Place, m *model.Changes, n int) []flows.Flow {
	var out []flows.Flow
	for range n {
		if f := c.flow(One(c, places), m); !slices.ContainsFunc(out, func(o flows.Flow) bool { return f.From == o.From && f.To == o.To && f.Protocol == o.Protocol }) {
			out = append(out, f)
		}
	}
	return out
}

// flow draws who sends where: to a frontend of the model, or to what may be none.
func (c Choose) flow(p *Place, m *model.Changes) flows.Flow {
	f := flows.Flow{From: One(c, p.Senders), Protocol: flows.Protocol(One(c, Protocols).String())}
	addrs := slices.Concat(p.clusterIPs, p.externalIPs, p.loadBalancers, p.Endpoints,
		[]netip.Addr{p.Unassigned, lab.NodeAddrs.Like(p.Unassigned), lab.GatewayAddrs.Like(p.Unassigned)})
	if f.From == flows.FromNode {
		addrs = append(addrs, loopbackLike(p.Unassigned))
	}
	f.To = netip.AddrPortFrom(One(c, addrs), One(c, slices.Concat(servicePorts, EndpointPorts)))
	if frontends := frontendsOf(p, m); len(frontends) > 0 && !c.Maybe(3) {
		chosen := One(c, frontends)
		f.To, f.Protocol = chosen.To, chosen.Protocol
	}
	if c.Maybe(20) {
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
func frontendsOf(p *Place, m *model.Changes) []flows.Flow {
	var out []flows.Flow
	for _, port := range m.Ports {
		if port.ID.Family != p.Family {
			continue
		}
		add := func(number uint16, addrs ...netip.Addr) {
			for _, addr := range addrs {
				out = append(out, flows.Flow{To: netip.AddrPortFrom(addr, number), Protocol: flows.Protocol(port.ID.Protocol.String())})
			}
		}
		add(port.Port, port.ClusterIP)
		add(port.Port, port.ExternalIPs...)
		add(port.Port, port.LoadBalancerIPs...)
		if port.NodePort != 0 {
			add(port.NodePort, lab.NodeAddrs.Like(port.ClusterIP), lab.GatewayAddrs.Like(port.ClusterIP))
		}
	}
	slices.SortFunc(out, func(a, b flows.Flow) int {
		return cmp.Or(a.To.Compare(b.To), cmp.Compare(a.Protocol, b.Protocol))
	})
	return out
}
