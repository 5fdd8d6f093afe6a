package flows

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"golang.org/x/sys/unix"
)

// NodeUnderTest is the node under test as the lab builds it.
var NodeUnderTest = evaluator.Host{Addresses: []netip.Addr{
	lab.NodeAddrs.IPv4, lab.NodeAddrs.IPv6, lab.GatewayAddrs.IPv4, lab.GatewayAddrs.IPv6,
}}

// PodLink returns the name of an interface that packets of node-1's pods come in by.
func (c Case) PodLink(t testing.TB) string {
	t.Helper()
	if bridge := c.Bridge(t); bridge != "" {
		return bridge
	}
	return "veth-1"
}

// Packet returns the first packet of the flow, as the node sees it that has its pods behind podLink.
func (f Flow) Packet(podLink string) evaluator.Packet {
	p := evaluator.Packet{
		Source:      netip.AddrPortFrom(f.From.Addr(f.To.Addr()), f.Port),
		Destination: f.To,
		Protocol:    protocolNumber(f),
		Local:       f.From == FromNode,
	}
	switch f.From {
	case FromNode:
	case FromOutside, FromOutside2:
		p.Interface = "outside"
	case FromRemote:
		p.Interface = "eth0"
	default:
		p.Interface = podLink
		if remotePod(p.Source.Addr()) {
			p.Interface = "eth0"
		}
	}
	return p
}

func remotePod(addr netip.Addr) bool {
	return slices.ContainsFunc(lab.RemotePodNetworks, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func protocolNumber(f Flow) uint8 {
	switch f.Protocol {
	case UDP:
		return unix.IPPROTO_UDP
	case SCTP:
		return unix.IPPROTO_SCTP
	case ICMP:
		if f.To.Addr().Is6() {
			return unix.IPPROTO_ICMPV6
		}
		return unix.IPPROTO_ICMP
	}
	return unix.IPPROTO_TCP
}
