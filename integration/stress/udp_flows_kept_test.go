package stress

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/integration/lab"
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

// clientsOfDNS returns a client from everywhere for every address of the Service dns.
func (c *cluster) clientsOfDNS(t *testing.T) (clients []*udpClient) {
	t.Helper()
	for i := range model.Families {
		for _, to := range addressesOf(dns()[i]) {
			for _, from := range []*lab.Host{c.Client, c.Outside, c.Node} {
				clients = append(clients, dialUDP(t, from, to))
			}
		}
	}
	return sending(t, clients...)
}

// without returns changes that take the Service's ports away.
func without(ports ...*model.ServicePort) *model.Changes {
	changes := only(ports...)
	for id := range changes.Ports {
		changes.Ports[id] = nil
	}
	return changes
}

// kube-proxy leaves flows alone as long as nobody serves their Service port, and so do these rules:
// games, VPNs and QUIC with one replica notice every packet that is lost.
func testUDPFlowsStay(t *testing.T) {
	edited := func(edit func(*model.ServicePort)) *model.Changes {
		ports := dns(first)
		for _, p := range ports {
			edit(p)
		}
		return only(ports...)
	}
	for _, tt := range []struct {
		name string
		// gone takes away what the flows came by, back restores it.
		gone, back *model.Changes
	}{
		{"while the only endpoint is unready", only(dns()...), only(dns(first)...)},
		{"while status.loadBalancer is empty", edited(func(p *model.ServicePort) { p.LoadBalancerIPs = nil }), only(dns(first)...)},
		{"while there is no external IP", edited(func(p *model.ServicePort) { p.ExternalIPs = nil }), only(dns(first)...)},
		{"while there is no node port", edited(func(p *model.ServicePort) { p.NodePort = 0 }), only(dns(first)...)},
		{"when the Service was deleted", without(dns()...), only(dns(first)...)},
		{"when the Service was deleted and the proxy restarted", nil, full(dns(first)...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t)
			c.answeringPods(t)
			c.sync(t, full(dns(first)...))
			clients := c.clientsOfDNS(t)
			start := mark(clients)
			start.expect(t, clients, podNames[first])
			entries := c.entries(t)
			if tt.gone == nil {
				c.restart(t)
				c.sync(t, full())
			} else {
				c.sync(t, tt.gone)
			}
			start.expect(t, clients, podNames[first])
			c.sync(t, tt.back)
			start.expect(t, clients, podNames[first])
			if diff := cmp.Diff(entries, c.entries(t)); diff != "" {
				t.Errorf("conntrack entries before and after:\n%s", diff)
			}
		})
	}
}

// What was sent before a Service had its address, or its node port, was not translated. The entries live as long as
// the clients send.
func testUDPFlowsThatWereNeverTranslatedFindTheFirstEndpoint(t *testing.T) {
	c := newCluster(t, func(config *compiler.Config) {
		config.NodePortAddresses = compiler.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}
	})
	c.answeringPods(t)
	c.sync(t, full())
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
