package stress

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
)

// sending starts clients that send all the time until the test ends.
func sending(t *testing.T, clients ...*udpClient) []*udpClient {
	t.Helper()
	for _, client := range clients {
		go client.keepSending()
		t.Cleanup(func() { close(client.stop); <-client.stopped })
	}
	return clients
}

// without returns changes that take the Service's ports away.
func without(ports ...*model.ServicePort) *model.Changes {
	changes := only(ports...)
	for id := range changes.Ports {
		changes.Ports[id] = nil
	}
	return changes
}

// web returns a port of another Service: a cluster always has one.
func web() *model.ServicePort { return service("web", model.TCP, model.IPv4, 11, first) }

// unreadyDNS returns the ports of the Service dns while its pods are listed and none serves.
func unreadyDNS(pods ...byte) []*model.ServicePort {
	ports := dns(pods...)
	for _, p := range ports {
		p.NotServing = p.Serving
		p.Cluster, p.Local, p.Serving = nil, nil, nil
	}
	return ports
}

// dnsWithout returns the ports of the Service dns without some of its addresses.
func dnsWithout(edit func(*model.ServicePort)) []*model.ServicePort {
	ports := dns(first)
	for _, p := range ports {
		edit(p)
	}
	return ports
}

// onAllAddresses makes node ports answer on all addresses of the node.
func onAllAddresses(config *compiler.Config) {
	config.NodePortAddresses = compiler.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}
}

// The address kinds of the Service dns.
const (
	onClusterIP = iota
	onNodePort
	onLoadBalancerIP
	onExternalIP
	onSecondaryNodePort
)

// clientsOfDNS returns clients from everywhere that send to the Service dns, by kind of address.
func (c *cluster) clientsOfDNS(t *testing.T) (clients map[int][]*udpClient) {
	t.Helper()
	clients = map[int][]*udpClient{}
	for _, p := range dns() {
		addresses := append(addressesOf(p), netip.AddrPortFrom(lab.GatewayAddrs.Like(p.ClusterIP), p.NodePort))
		for kind, to := range addresses {
			for _, from := range []*lab.Host{c.Client, c.Outside, c.Node} {
				clients[kind] = append(clients[kind], sending(t, dialUDP(t, from, to))...)
			}
		}
	}
	return clients
}

// A flow ends when its endpoint, its address or its Service is gone, because the endpoint's address may
// soon be another pod's. It stays while its endpoint is listed and none serves: games, VPNs and QUIC with
// one replica notice every packet that is lost.
func testUDPFlowsEndWhen(t *testing.T) {
	all := []int{onClusterIP, onNodePort, onLoadBalancerIP, onExternalIP, onSecondaryNodePort}
	for _, tt := range []struct {
		name string
		// before is applied while the clients send, then after, by a new proxy if it is Full.
		before, after *model.Changes
		// ends are the kinds of addresses to which flows end.
		ends []int
	}{
		{"nothing, while the only endpoint is unready", nil, only(unreadyDNS(first)...), nil},
		{"nothing, while the only endpoint is unready and the proxy restarts", only(unreadyDNS(first)...), full(unreadyDNS(first)...), nil},
		{"the endpoint is gone and none is left", nil, only(dns()...), all},
		{"the endpoint is gone and the rest is unready", nil, only(unreadyDNS(second)...), all},
		{"the endpoint was unready and is gone", only(unreadyDNS(first, second)...), only(unreadyDNS(second)...), all},
		{"the endpoint went while no proxy ran", nil, full(dns()...), all},
		{"the load balancer IP is gone", nil, only(dnsWithout(func(p *model.ServicePort) { p.LoadBalancerIPs = nil })...), []int{onLoadBalancerIP}},
		{"the external IP is gone", nil, only(dnsWithout(func(p *model.ServicePort) { p.ExternalIPs = nil })...), []int{onExternalIP}},
		{"the node port is gone", nil, only(dnsWithout(func(p *model.ServicePort) { p.NodePort = 0 })...), []int{onNodePort, onSecondaryNodePort}},
		{"the Service is gone", nil, without(dns()...), all},
		{"a full state lacks the Service", nil, full(web()), all},
		{"the Service went while its endpoint was unready and no proxy ran", only(unreadyDNS(first)...), full(web()), all},
		{"the external IP and the node port went while no proxy ran", nil, full(dnsWithout(func(p *model.ServicePort) { p.ExternalIPs, p.NodePort = nil, 0 })...), []int{onExternalIP, onNodePort, onSecondaryNodePort}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t, onAllAddresses)
			c.answeringPods(t)
			c.sync(t, full(dns(first)...))
			clients := c.clientsOfDNS(t)
			others := c.clientsOfAnotherProgram(t)
			ours := slices.Concat(slices.Collect(maps.Values(clients))...)
			start := mark(append(ours, others...))
			start.expect(t, others, podNames[keeper])
			start.expect(t, ours, podNames[first])
			entries := c.entries(t)
			if tt.before != nil {
				c.sync(t, tt.before)
			}
			if tt.after.Full {
				c.restart(t)
			}
			c.sync(t, tt.after)
			now := c.entries(t)
			var ended, kept []*udpClient
			for kind, clients := range clients {
				if slices.Contains(tt.ends, kind) {
					ended = append(ended, clients...)
				} else {
					kept = append(kept, clients...)
				}
			}
			expectNone(t, ended)
			if len(kept) > 0 {
				start.expect(t, kept, podNames[first])
				expectEntries(t, kept, entries, now)
			}
			start.expect(t, others, podNames[keeper])
			expectEntries(t, others, entries, now)
		})
	}
}

// expectEntries checks that clients still have their conntrack entries of before.
func expectEntries(t *testing.T, clients []*udpClient, before, now map[string]uint32) {
	t.Helper()
	for _, client := range clients {
		if id := flowName(client.source(), client.dialed); before[id] == 0 || before[id] != now[id] {
			t.Errorf("%s: conntrack entry %#x became %#x", client.name, before[id], now[id])
		}
	}
}

// clientsOfAnotherProgram returns clients whose datagrams another program on the node translates, as for a host port:
// on a port of the node, and on an address that no Service has.
func (c *cluster) clientsOfAnotherProgram(t *testing.T) (clients []*udpClient) {
	t.Helper()
	for _, family := range model.Families {
		table, pod := map[model.Family]string{model.IPv4: "ip", model.IPv6: "ip6"}[family], netip.AddrPortFrom(podIP(family, keeper), targetPort)
		for _, to := range []netip.AddrPort{
			netip.AddrPortFrom(lab.NodeAddrs.Like(pod.Addr()), 5353), netip.AddrPortFrom(clusterIP(family, 203), 80),
		} {
			lab.Nft(t, c.Node, fmt.Sprintf(`table %[1]s hostports {
	chain prerouting {
		type nat hook prerouting priority -110
		%[1]s daddr %[2]s udp dport %[3]d dnat to %[4]s
	}
}
`, table, to.Addr(), to.Port(), pod), "-f", "-")
			clients = append(clients, sending(t, dialUDP(t, c.Outside, to))...)
		}
	}
	return clients
}

// What was sent before a Service had its address, or its node port, was not translated. The entries live as long as
// the clients send.
func testUDPFlowsThatWereNeverTranslatedFindTheFirstEndpoint(t *testing.T) {
	c := newCluster(t, onAllAddresses)
	c.answeringPods(t)
	c.sync(t, full(web()))
	// What is in a ServiceCIDR is dropped before there is an entry.
	outside := map[model.Family]string{model.IPv4: "198.51.100.99", model.IPv6: "2001:db8:51::99"}
	dns := func(pods ...byte) []*model.ServicePort {
		ports := dns(pods...)
		for _, p := range ports {
			p.LoadBalancerIPs, p.ExternalIPs = []netip.Addr{netip.MustParseAddr(outside[p.ID.Family])}, nil
		}
		return ports
	}
	nodePort := dns()[0].NodePort
	var ours, others []*udpClient
	for i, family := range model.Families {
		for _, to := range []netip.AddrPort{
			netip.AddrPortFrom(dns()[i].LoadBalancerIPs[0], dns()[i].Port),
			netip.AddrPortFrom(lab.NodeAddrs.Like(podIP(family, 1)), nodePort),
			netip.AddrPortFrom(lab.GatewayAddrs.Like(podIP(family, 1)), nodePort),
		} {
			ours = append(ours, dialUDP(t, c.Client, to), dialUDP(t, c.Outside, to))
		}
		// The number of the node port, on another machine, and on a loopback address.
		others = append(others, dialUDP(t, c.Client, netip.AddrPortFrom(lab.RemoteAddrs.Like(podIP(family, 1)), nodePort)))
	}
	others = append(others, dialUDP(t, c.Node, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), nodePort)))
	sending(t, append(ours, others...)...)
	for _, client := range append(ours, others...) {
		if client.dialed.Addr().IsLoopback() || c.Node.Has(client.dialed.Addr()) || client.dialed.Port() == nodePort {
			client.awaitRefusal(t)
		}
		client.awaitSent(t, enough)
	}
	entries := c.entries(t)
	for _, client := range append(ours, others...) {
		if entries[flowName(client.source(), client.dialed)] == 0 {
			t.Fatalf("%s has no conntrack entry, so this test shows nothing", client.name)
		}
	}

	c.sync(t, only(dns()...))
	for _, client := range ours {
		client.awaitRefusal(t)
	}
	c.sync(t, only(dns(first)...))
	mark(ours).expect(t, ours, podNames[first])
	now := c.entries(t)
	for _, client := range others {
		if id := flowName(client.source(), client.dialed); entries[id] != now[id] {
			t.Errorf("%s: conntrack entry %#x became %#x", client.name, entries[id], now[id])
		}
	}
}
