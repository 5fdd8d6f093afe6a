package random

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
)

// Place has the addresses of one IP family that are drawn from. Services claim each
// other's addresses and those of nodes and pods.
type Place struct {
	// Family is the IP family.
	Family model.Family
	// Endpoints are two pods on the node under test, two on the other node, the client, both nodes and the host outside.
	Endpoints []netip.Addr
	// Unassigned is in the range of ClusterIPs, and no Service has it.
	Unassigned netip.Addr
	// Senders are those of flows.
	Senders []flows.Origin
	// Sources are ranges of senders, NodePortRanges ranges of the node's addresses, PodRanges those of pods, and
	// ServiceRanges those of ClusterIPs.
	Sources, NodePortRanges, PodRanges, ServiceRanges []netip.Prefix

	// clusterIPs has one for each Service.
	clusterIPs, externalIPs, loadBalancers []netip.Addr
}

// Places has a Place for each family.
var Places = []*Place{
	{
		Family:         model.IPv4,
		Endpoints:      parseAddrs("10.244.1.5", "10.244.1.6", "10.244.2.5", "10.244.2.6", "10.244.1.250", "192.168.0.1", "192.168.0.2", "198.51.100.7"),
		clusterIPs:     parseAddrs("10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4"),
		externalIPs:    parseAddrs("203.0.113.1", "203.0.113.2", "192.168.0.1", "192.168.0.2", "10.96.0.1", "10.244.1.6"),
		loadBalancers:  parseAddrs("192.0.2.1", "203.0.113.1", "192.168.0.1"),
		Unassigned:     netip.MustParseAddr("10.96.0.99"),
		Senders:        []flows.Origin{flows.FromClient, flows.FromNode, flows.FromOutside, flows.FromOutside2, flows.FromRemote, "10.244.1.5", "10.244.2.5"},
		Sources:        parsePrefixes("10.244.1.250/32", "10.244.0.0/16", "198.51.100.7/32", "198.51.100.0/29", "192.168.0.0/24", "192.168.0.1/32", "0.0.0.0/0"),
		NodePortRanges: parsePrefixes("0.0.0.0/0", "192.168.0.0/16", "10.244.1.0/24", "127.0.0.0/8"),
		PodRanges:      parsePrefixes("10.244.0.0/16"),
		ServiceRanges:  parsePrefixes("10.96.0.0/16"),
	},
	{
		Family:         model.IPv6,
		Endpoints:      parseAddrs("fd00:10:244:1::5", "fd00:10:244:1::6", "fd00:10:244:2::5", "fd00:10:244:2::6", "fd00:10:244:1::250", "fd00:1::1", "fd00:1::2", "2001:db8:51::7"),
		clusterIPs:     parseAddrs("fd00:10:96::1", "fd00:10:96::2", "fd00:10:96::3", "fd00:10:96::4"),
		externalIPs:    parseAddrs("2001:db8:113::1", "2001:db8:113::2", "fd00:1::1", "fd00:1::2", "fd00:10:96::1", "fd00:10:244:1::6"),
		loadBalancers:  parseAddrs("2001:db8:192::1", "2001:db8:113::1", "fd00:1::1"),
		Unassigned:     netip.MustParseAddr("fd00:10:96::99"),
		Senders:        []flows.Origin{flows.FromClient, flows.FromNode, flows.FromOutside, flows.FromOutside2, flows.FromRemote, "fd00:10:244:1::5", "fd00:10:244:2::5"},
		Sources:        parsePrefixes("fd00:10:244:1::250/128", "fd00:10:244::/48", "2001:db8:51::7/128", "2001:db8:51::/125", "fd00:1::/64", "fd00:1::1/128", "::/0"),
		NodePortRanges: parsePrefixes("::/0", "fd00:1::/32", "fd00:10:244:1::/64", "::1/128"),
		PodRanges:      parsePrefixes("fd00:10:244::/48"),
		ServiceRanges:  parsePrefixes("fd00:10:96::/112"),
	},
}

// Protocols are those of Services.
var Protocols = []model.Protocol{model.TCP, model.UDP, model.SCTP}

// EndpointPorts are those of endpoints. Some ports are frontends, node ports and endpoints at once.
var EndpointPorts = []uint16{8080, 8081}

var servicePorts = []uint16{80, 81, 8080, firstNodePort}

// firstNodePort is the node port of the first Service; those of the others follow.
const firstNodePort = 30000

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

// nodeOf returns the node of an endpoint, empty for the host outside.
func (p *Place) nodeOf(endpoint netip.Addr) string {
	return []string{lab.NodeName, lab.NodeName, lab.RemoteName, lab.RemoteName, lab.NodeName, lab.NodeName, lab.RemoteName, ""}[slices.Index(p.Endpoints, endpoint)]
}

// Endpoints returns the endpoints that a lab must serve, whatever is drawn.
func Endpoints() []flows.Endpoint {
	var out []flows.Endpoint
	for _, p := range Places {
		for _, addr := range p.Endpoints {
			e := flows.Endpoint{Addr: addr, Node: p.nodeOf(addr)}
			for _, port := range EndpointPorts {
				for _, protocol := range []flows.Protocol{flows.TCP, flows.UDP, flows.SCTP} {
					e.Ports = append(e.Ports, flows.Port{Protocol: protocol, Number: port})
				}
			}
			out = append(out, e)
		}
	}
	return out
}
