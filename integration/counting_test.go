package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
)

// counting is a node whose tables count, with an endpoint in a pod and one of the node's own.
type counting struct {
	lab     *lab.Lab
	conn    *nft.Conn
	backend *proxy.Backend
}

const (
	echoText = "hello"
	// echoBytes is one packet with that text: 20 bytes of IP, 8 of UDP.
	echoBytes = 20 + 8 + len(echoText)
)

func newCounting(t *testing.T) *counting {
	t.Helper()
	c := &counting{lab: lab.ForTest(t)}
	c.conn = lab.Conn(t, c.lab.Node)
	pod, err := c.lab.AddPod("pod", netip.MustParseAddr("10.244.1.5"))
	if err != nil {
		t.Fatal(err)
	}
	echo(t, pod, "10.244.1.5:5353")
	echo(t, c.lab.Node, "192.168.0.1:5353")
	listen(t, c.lab.Remote, "10.244.2.250:5353")
	c.backend = c.newBackend(t)
	c.sync(t, "10.244.1.5:5353")
	return c
}

func (c *counting) newBackend(t *testing.T) *proxy.Backend {
	t.Helper()
	config := compiler.Default()
	config.DetectLocal.CIDRs = lab.LocalPodNetworks
	config.CountServices, config.CountRefused = true, true
	b, err := proxy.NewBackend(c.conn, config, proxy.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// sync gives the Services to the backend: shop/pod with the endpoints, shop/host with one of the node's own,
// shop/remote, which external clients are dropped for, and shop/empty without any.
func (c *counting) sync(t *testing.T, endpoints ...string) {
	t.Helper()
	port := func(name, clusterIP string, nodePort uint16, local bool, addrs ...string) *model.ServicePort {
		p := &model.ServicePort{
			ID:        model.PortID{Namespace: "shop", Service: name, Port: "dns", Protocol: model.UDP, Family: model.IPv4},
			ClusterIP: netip.MustParseAddr(clusterIP), Port: 53, NodePort: nodePort,
		}
		for _, a := range addrs {
			p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.MustParseAddrPort(a), Local: local, Remote: !local})
		}
		return p
	}
	remote := port("remote", "10.96.0.12", 30055, false, "10.244.2.250:5353")
	remote.ExternalPolicy = model.PolicyLocal
	pod := port("pod", "10.96.0.10", 30053, true, endpoints...)
	pod.LoadBalancerIPs, pod.LoadBalancerSourceRanges = []netip.Addr{netip.MustParseAddr("192.0.2.20")}, []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	ports := model.PortsByID(pod, port("host", "10.96.0.11", 30054, true, "192.168.0.1:5353"), remote, port("empty", "10.96.0.13", 0, false))
	if err := c.backend.Sync(t.Context(), &model.Changes{
		Full: true, Ports: ports, Node: &model.Node{Name: lab.NodeName, IPs: []netip.Addr{lab.NodeAddrs.IPv4}},
		ServiceCIDRsChanged: true, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
	}); err != nil {
		t.Fatal(err)
	}
}

// listen takes packets and does not read them.
func listen(t *testing.T, h *lab.Host, address string) (conn net.PacketConn) {
	t.Helper()
	err := h.Do(func() (err error) {
		conn, err = net.ListenPacket("udp4", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// echo answers each packet with the same.
func echo(t *testing.T, h *lab.Host, address string) {
	t.Helper()
	conn := listen(t, h, address)
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(buf[:n], from)
		}
	}()
}

// send sends packets on one connection. With answers, each is answered before the next.
func send(t *testing.T, h *lab.Host, to string, packets int, answers bool) {
	t.Helper()
	err := h.Do(func() error {
		conn, err := net.Dial("udp4", to)
		if err != nil {
			return err
		}
		defer conn.Close()
		for range packets {
			if _, err := conn.Write([]byte(echoText)); err != nil {
				return err
			}
			if !answers {
				continue
			}
			if err := conn.SetReadDeadline(time.Now().Add(await.Patience)); err != nil {
				return err
			}
			if _, err := conn.Read(make([]byte, 64)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// counted returns the counters that ruledump prints: "connections/packets/bytes" by "Service address", without zeros.
func (c *counting) counted(t *testing.T, args ...string) map[string]string {
	t.Helper()
	var list struct {
		Frontends []struct {
			Service, Address            string
			Connections, Packets, Bytes *uint64
		}
	}
	text := runRuledump(t, c.lab.Node, append([]string{"services", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range list.Frontends {
		if f.Connections == nil || f.Packets == nil || f.Bytes == nil {
			t.Fatalf("%s %s is not counted:\n%s", f.Service, f.Address, text)
		}
		if *f.Connections+*f.Packets > 0 {
			out[f.Service+" "+f.Address] = fmt.Sprintf("%d/%d/%d", *f.Connections, *f.Packets, *f.Bytes)
		}
	}
	return out
}

// TestServiceCounters sends packets and compares what was counted with what was sent, to the byte.
func TestServiceCounters(t *testing.T) {
	t.Parallel()
	c := newCounting(t)
	counts := metrics.NewServiceCounts(c.conn, func(do func([]*nft.Table)) { c.backend.View(do) })
	if err := counts.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	expect := func(frontend string, connections, packets int) {
		want[frontend+"/UDP"] = fmt.Sprintf("%d/%d/%d", connections, packets, packets*echoBytes)
	}
	is := func(t *testing.T) {
		t.Helper()
		if diff := cmp.Diff(want, c.counted(t)); diff != "" {
			t.Errorf("-want +counted:\n%s", diff)
		}
	}
	for _, tt := range []struct {
		name     string
		from     *lab.Host
		to       string
		frontend string
	}{
		{"a pod to a ClusterIP", c.lab.Client, "10.96.0.10:53", "pod 10.96.0.10:53"},
		{"outside to a node port", c.lab.Outside, "192.168.0.1:30053", "pod :30053"},
		{"outside to an endpoint of the node's own", c.lab.Outside, "192.168.0.1:30054", "host :30054"},
		{"the node to itself, whose packets pass two hooks", c.lab.Node, "10.96.0.11:53", "host 10.96.0.11:53"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 {
				send(t, tt.from, tt.to, 3, true)
			}
			expect(tt.frontend, 2, 12)
			is(t)
		})
	}
	t.Run("the node to a pod", func(t *testing.T) {
		send(t, c.lab.Node, "10.96.0.10:53", 3, true)
		expect("pod 10.96.0.10:53", 3, 18)
		is(t)
	})
	t.Run("packets before the first answer are one connection", func(t *testing.T) {
		send(t, c.lab.Client, "10.96.0.12:53", 3, false)
		expect("remote 10.96.0.12:53", 1, 3)
		is(t)
	})
	t.Run("what is dropped for want of a local endpoint does not count", func(t *testing.T) {
		send(t, c.lab.Outside, "192.168.0.1:30055", 3, false)
		is(t)
	})
	t.Run("who is refused is counted by reason", func(t *testing.T) {
		if err := counts.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		send(t, c.lab.Outside, "192.0.2.20:53", 4, false)
		for range 2 { // a socket learns of the refusal with its second packet
			send(t, c.lab.Client, "10.96.0.13:53", 1, false)
		}
		for range 6 {
			send(t, c.lab.Client, "10.96.0.10:54", 1, false)
		}
		send(t, c.lab.Outside, "10.96.0.99:53", 5, false)
		is(t)
		stats := runRuledump(t, c.lab.Node, "stats")
		const refused = "REFUSED          REASON              PACKETS\nshop/pod         unknown-port        6\n" +
			"-                unassigned-address  5\nshop/pod:dns     source-not-allowed  4\n" +
			"shop/remote:dns  policy-local        3\nshop/empty:dns   no-endpoints        2\n"
		if !strings.Contains(stats, refused) {
			t.Errorf("stats does not say\n%s\nbut\n%s", refused, stats)
		}
		if err := counts.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := map[string]uint64{}
		counts.Each(func(n metrics.ServiceCount) {
			for reason, packets := range n.Refused {
				if packets > 0 {
					got[n.ServicePort+" "+compiler.Counted(reason).String()] = packets
				}
			}
		})
		want := map[string]uint64{"shop/pod:dns source-not-allowed": 4, "shop/remote:dns policy-local": 3, "shop/empty:dns no-endpoints": 2, "shop/pod unknown-port": 6, " unassigned-address": 5}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +metrics:\n%s", diff)
		}
	})
	t.Run("what goes to no Service does not count", func(t *testing.T) {
		send(t, c.lab.Client, "192.168.0.1:5353", 1, true)
		is(t)
	})
	t.Run("another number of endpoints leaves the counts", func(t *testing.T) {
		c.sync(t, "10.244.1.5:5353", "192.168.0.1:5353")
		is(t)
	})
	t.Run("a restart leaves the counts", func(t *testing.T) {
		c.backend = c.newBackend(t)
		c.sync(t, "10.244.1.5:5353")
		is(t)
	})
	t.Run("a dump has them", func(t *testing.T) {
		if diff := cmp.Diff(want, c.counted(t, "--dump", dumpOf(t, c.lab.Node))); diff != "" {
			t.Errorf("-want +counted:\n%s", diff)
		}
	})
	t.Run("the table shows them", func(t *testing.T) {
		table := runRuledump(t, c.lab.Node, "services")
		for _, text := range []string{"CHAIN                CONNECTIONS  BYTES", "3            594 B", "0            0 B"} {
			if !strings.Contains(table, text) {
				t.Errorf("no %q in\n%s", text, table)
			}
		}
	})
	t.Run("the proxy adds them up by Service port", func(t *testing.T) {
		if err := counts.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		counts.Each(func(n metrics.ServiceCount) { got[n.ServicePort] = fmt.Sprintf("%d/%d", n.Connections, n.Bytes) })
		want := map[string]string{
			"shop/empty:dns":  "0/0", // only refused
			"shop/pod":        "0/0", // a port that it does not have
			"":                "0/0", // addresses that no Service holds
			"shop/pod:dns":    fmt.Sprintf("5/%d", 30*echoBytes),
			"shop/host:dns":   fmt.Sprintf("4/%d", 24*echoBytes),
			"shop/remote:dns": fmt.Sprintf("1/%d", 3*echoBytes),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
	t.Run("tables made anew count from 0, and the sums continue", func(t *testing.T) {
		lab.Nft(t, c.lab.Node, "", "flush", "ruleset")
		c.sync(t, "10.244.1.5:5353")
		if repaired, err := c.backend.Check(t.Context()); err != nil {
			t.Fatal(repaired, err)
		}
		want = map[string]string{}
		is(t)
		send(t, c.lab.Client, "10.96.0.10:53", 1, true)
		if err := counts.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got metrics.ServiceCount
		counts.Each(func(n metrics.ServiceCount) {
			if n.ServicePort == "shop/pod:dns" {
				got = n
			}
		})
		if got.Connections != 6 || got.Bytes != uint64(32*echoBytes) {
			t.Errorf("%+v, want 6 connections and %d bytes", got, 32*echoBytes)
		}
	})
}

// dumpOf saves what a host's kernel has, and returns the path.
func dumpOf(t *testing.T, h *lab.Host) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dump.json")
	if err := os.WriteFile(path, []byte(runRuledump(t, h, "live", "-o", "json")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
