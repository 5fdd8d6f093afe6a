package integration

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/integration/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/proxy"
)

// answerUDP answers every datagram to addr:port with the pod's name.
func answerUDP(t *testing.T, h *lab.Host, addr netip.AddrPort) {
	t.Helper()
	var conn *net.UDPConn
	if err := h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 100)
		for {
			_, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			conn.WriteToUDPAddrPort([]byte(h.Name), from)
		}
	}()
}

// udpClient sends from one socket all the time and says who answered last.
type udpClient struct{ conn *net.UDPConn }

func dialUDP(t *testing.T, h *lab.Host, to netip.AddrPort) *udpClient {
	t.Helper()
	c := &udpClient{}
	if err := h.Do(func() (err error) {
		c.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close() })
	return c
}

// ask sends a datagram and returns who answers within a moment.
func (c *udpClient) ask() (string, error) {
	if _, err := c.conn.Write([]byte("?")); err != nil {
		return "", err
	}
	buf := make([]byte, 100)
	c.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	n, err := c.conn.Read(buf)
	return string(buf[:n]), err
}

func (c *udpClient) expect(t *testing.T, who string) {
	t.Helper()
	eventually(t, "an answer from "+who, func() error {
		got, err := c.ask()
		if err == nil && got != who {
			err = fmt.Errorf("%s answered", got)
		}
		return err
	})
}

// A UDP client that never stops sending reaches the endpoint that replaces its own, over
// every kind of address, and a client whose endpoint stays is not disturbed.
func TestUDPClientsFollowTheirEndpoints(t *testing.T) {
	l := newLab(t)
	flows, err := conntrack.Dial(int(l.Node.NetNS().Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer flows.Close()
	b, err := proxy.NewBackend(connTo(t, l.Node), compiler.Default(), proxy.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	b.RemoveStaleFlows(flows)

	endpoints := map[string]netip.AddrPort{}
	for i, name := range []string{"first", "second", "other"} {
		addr := netip.AddrFrom4([4]byte{10, 244, 1, byte(10 + i)})
		pod, err := l.AddPod(name, addr)
		if err != nil {
			t.Fatal(err)
		}
		endpoints[name] = netip.AddrPortFrom(addr, 5353)
		answerUDP(t, pod, endpoints[name])
	}
	service := func(name string, clusterIP string, nodePort uint16, serving ...string) *model.ServicePort {
		p := &model.ServicePort{
			ID:        model.PortID{Namespace: "dns", Service: name, Protocol: model.UDP, Family: model.IPv4},
			ClusterIP: netip.MustParseAddr(clusterIP), Port: 53, NodePort: nodePort,
		}
		if nodePort != 0 {
			p.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.53")}
			p.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.53")}
		}
		for _, s := range serving {
			p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: endpoints[s], Local: true})
			p.Serving = append(p.Serving, endpoints[s])
		}
		return p
	}
	sync := func(full bool, ports ...*model.ServicePort) {
		t.Helper()
		changes := &model.Changes{Full: full, Ports: map[model.PortID]*model.ServicePort{}}
		if full {
			changes.Node = &model.Node{Name: lab.NodeName, IPs: []netip.Addr{lab.NodeAddrs.IPv4}}
		}
		for _, p := range ports {
			changes.Ports[p.ID] = p
		}
		if err := b.Sync(context.Background(), changes); err != nil {
			t.Fatal(err)
		}
	}
	sync(true, service("web", "10.96.0.53", 30053, "first"), service("other", "10.96.0.54", 0, "other"))

	var clients []*udpClient
	for _, to := range []string{"10.96.0.53:53", "203.0.113.53:53", "192.0.2.53:53", "192.168.0.1:30053"} {
		for _, from := range []*lab.Host{l.Client, l.Outside} {
			c := dialUDP(t, from, netip.MustParseAddrPort(to))
			c.expect(t, "first")
			clients = append(clients, c)
		}
	}
	undisturbed := dialUDP(t, l.Client, netip.MustParseAddrPort("10.96.0.54:53"))
	undisturbed.expect(t, "other")
	entryOf := func(c *udpClient) (n int) {
		source := c.conn.LocalAddr().(*net.UDPAddr).AddrPort()
		if _, err := flows.DeleteFlows(conntrack.IPv4, uint8(model.UDP), func(f conntrack.Flow) bool {
			if f.Source == source {
				n++
			}
			return false
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}

	sync(false, service("web", "10.96.0.53", 30053, "second"))
	for _, c := range clients {
		c.expect(t, "second")
	}
	if n := entryOf(undisturbed); n != 1 {
		t.Errorf("the client of the other Service has %d entries, want its one to stay", n)
	}

	// An endpoint more cuts nobody off.
	before := entryOf(clients[0])
	sync(false, service("web", "10.96.0.53", 30053, "first", "second"))
	if after := entryOf(clients[0]); before != 1 || after != 1 {
		t.Errorf("entries of a client whose endpoint stays: %d before and %d after an endpoint came, want 1 and 1", before, after)
	}
	clients[0].expect(t, "second")

	// No endpoint: refused. The first one again: reached from the same socket.
	sync(false, service("web", "10.96.0.53", 30053))
	eventually(t, "a refusal", func() error {
		if got, err := clients[0].ask(); err == nil {
			return fmt.Errorf("%s answered", got)
		}
		return nil
	})
	sync(false, service("web", "10.96.0.53", 30053, "first"))
	for _, c := range clients {
		c.expect(t, "first")
	}
}
