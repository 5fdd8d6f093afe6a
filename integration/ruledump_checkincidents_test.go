package integration

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// both is a node whose Service has an endpoint here and one on the other node, which both serve.
func (i *incident) both(t *testing.T, config string) {
	t.Helper()
	pod, err := i.l.AddPod("both", netip.MustParseAddr("10.244.1.5"))
	if err != nil {
		t.Fatal(err)
	}
	lab.ServeTCP(t, pod, ":8080", lab.Echo)
	lab.ServeTCP(t, i.l.Remote, ":8080", lab.Echo)
	i.applyWith(t, "both.yaml", config)
}

// command runs a program in the node's namespace.
func (i *incident) command(t *testing.T, h *lab.Host, name string, args ...string) {
	t.Helper()
	if p := lab.StartCommand(t, h, exec.Command(name, args...)); p.Wait() != nil {
		t.Fatal(p.Output())
	}
}

// try dials from a host of the lab, and does not care what becomes of it.
func (i *incident) try(h *lab.Host, to string) {
	ctx, stop := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer stop()
	if conn, err := h.DialContext(ctx, "tcp", to); err == nil {
		conn.Close()
	}
}

// checkIncidents are situations that check finds by itself. cause stands in the first three lines of what it prints.
var checkIncidents = []struct {
	name    string
	prepare func(*testing.T, *incident)
	args    []string
	cause   string
	// level is broken, unless the incident is what somebody has asked for, or may be none.
	level string
	// silent are the address that really is not served, and its client; no address for incidents that are no packet's.
	to   string
	from func(*lab.Lab) *lab.Host
}{
	{name: "a firewall of nft drops", cause: "inet fw f drops it (policy drop)", to: "10.96.0.90:80", prepare: func(t *testing.T, i *incident) {
		i.both(t, "config.yaml")
		lab.Nft(t, i.l.Node, "table inet fw {\n chain f { type filter hook forward priority 5; policy drop;\n ct state established accept\n }\n}\n", "-f", "-")
	}},
	{name: "iptables-legacy drops", cause: "ip filter (iptables-legacy) FORWARD drops it (rule 2)", to: "10.96.0.90:80", prepare: func(t *testing.T, i *incident) {
		i.both(t, "config.yaml")
		i.command(t, i.l.Node, "iptables-legacy", "-A", "FORWARD", "-p", "udp", "--dport", "9", "-j", "ACCEPT")
		i.command(t, i.l.Node, "iptables-legacy", "-A", "FORWARD", "-p", "tcp", "--dport", "8080", "-j", "DROP")
	}},
	{name: "no endpoint is ready", cause: "no ready endpoint", to: "10.96.0.30:80", args: []string{"shop/cart"}, prepare: func(t *testing.T, i *incident) { i.apply(t, "shop.yaml") }},
	{name: "policy Local", cause: "externalTrafficPolicy Local and no ready endpoint here", level: "remark", args: []string{"shop/shopfront"}, to: "192.0.2.40:80",
		from: func(l *lab.Lab) *lab.Host { return l.Outside }, prepare: func(t *testing.T, i *incident) { i.apply(t, "shop.yaml") }},
	{name: "source ranges", cause: "loadBalancerSourceRanges leaves clients out", level: "remark", args: []string{"shop/admin"}, to: "192.0.2.50:80",
		from: func(l *lab.Lab) *lab.Host { return l.Outside }, prepare: func(t *testing.T, i *incident) {
			i.pod(t, "10.244.1.5")
			i.apply(t, "shop.yaml")
		}},
	{name: "a wrong clusterCIDR", cause: "detect-local: no route or address of this node is in 10.99.0.0/16", prepare: func(t *testing.T, i *incident) { i.both(t, "config-elsewhere.yaml") }},
	{name: "strict rp_filter", cause: "rp_filter is strict on eth0, lo, outside, veth-3, veth-4 and has dropped packets: ", level: "remark", to: "192.168.0.1:30090",
		from: func(l *lab.Lab) *lab.Host { return l.Outside }, prepare: func(t *testing.T, i *incident) {
			i.both(t, "config.yaml")
			i.sysctl(t, "ipv4/conf/all/rp_filter", "1")
			i.command(t, i.l.Node, "ip", "route", "replace", "198.51.100.7", "dev", "eth0") // while its packets come in by another device
		}},
	{name: "a missing route", cause: "no route to 10.244.2.0/24 but the default one", to: "10.96.0.90:80", prepare: func(t *testing.T, i *incident) {
		i.both(t, "config.yaml")
		i.command(t, i.l.Node, "ip", "route", "add", "10.244.3.0/24", "via", "192.168.0.2", "dev", "eth0", "onlink")
		i.command(t, i.l.Node, "ip", "route", "del", "10.244.2.0/24")
	}},
	{name: "a contested address", cause: "192.0.2.80:80/TCP is claimed by several Services; shop/blue gets it", level: "remark",
		args: []string{"--manifests", "../docs/troubleshooting/conflict.yaml", "--config", "../docs/troubleshooting/config.yaml", "--node", "node-1"}},
	{name: "an MTU black hole", cause: "MTU 1300 by eth0, and pods here have 1500", level: "remark", prepare: func(t *testing.T, i *incident) {
		i.both(t, "config.yaml")
		i.command(t, i.l.Node, "ip", "link", "set", "eth0", "mtu", "1300")
	}},
	{name: "a pod listens at another port", cause: "endpoints refuse connections (wrong port?)", args: []string{"--dial"}, to: "10.96.0.80:80", prepare: func(t *testing.T, i *incident) {
		i.pod(t, "10.244.1.5")
		i.apply(t, "edge.yaml")
	}},
	{name: "a UDP client is held by a dead endpoint", cause: "UDP clients are held by endpoints that no longer serve: 1 flows", prepare: func(t *testing.T, i *incident) {
		incidents["udp"](t, i)
	}},
	{name: "a drop in the pod's own namespace", cause: "endpoints do not answer: 5 of their 5 connections", to: "10.96.0.80:80", prepare: func(t *testing.T, i *incident) {
		pod, err := i.l.AddPod("edge", netip.MustParseAddr("10.244.1.5"))
		if err != nil {
			t.Fatal(err)
		}
		lab.ServeTCP(t, pod, ":8080", lab.Echo)
		i.apply(t, "edge.yaml")
		lab.Nft(t, pod, "table ip inside {\n chain in { type filter hook input priority 0; policy accept;\n tcp dport 8080 drop\n }\n}\n", "-f", "-")
		for range 4 {
			i.try(i.l.Client, "10.96.0.80:80")
		}
	}},
	{name: "the connection table is full", cause: "the connection table is full: ", to: "10.96.0.90:80", prepare: func(t *testing.T, i *incident) {
		i.both(t, "config.yaml")
		fillTable(t, i.l.Node)
	}},
	{name: "the proxy is dead", cause: "no proxy keeps these rules", args: []string{"--proxy-address=127.0.0.1:10249"}, prepare: func(t *testing.T, i *incident) { i.both(t, "config.yaml") }},
	{name: "the tables are flushed", cause: "the kernel has no table of the proxy", prepare: func(t *testing.T, i *incident) {
		i.both(t, "config.yaml")
		lab.Nft(t, i.l.Node, "", "flush", "ruleset")
	}},
	{name: "ip_forward is 0", cause: "ip_forward is 0", to: "10.96.0.90:80", prepare: func(t *testing.T, i *incident) {
		i.both(t, "config.yaml")
		i.sysctl(t, "ipv4/ip_forward", "0")
	}},
}

// TestCheckIncidents makes each incident on a node of its own, sees that a client is really not served, and that check alone
// names the cause in its first three lines.
func TestCheckIncidents(t *testing.T) {
	t.Parallel()
	for _, tt := range checkIncidents {
		t.Run(strings.ReplaceAll(tt.name, "'", ""), func(t *testing.T) {
			i := &incident{l: lab.ForTest(t)}
			if tt.prepare != nil {
				tt.prepare(t, i)
			}
			if tt.to != "" {
				from := i.l.Client
				if tt.from != nil {
					from = tt.from(i.l)
				}
				if !i.fails(from, tt.to) {
					t.Errorf("all connections to %s came about", tt.to)
				}
			}
			p := lab.Start(t, i.l.Node, "ruledump", append([]string{"check", "--proxy-address="}, tt.args...)...)
			_ = p.Wait() // the text says it
			lines := strings.SplitAfter(p.Output(), "\n")
			level, want := "broken", 1
			if tt.level != "" {
				level, want = tt.level, 0
			}
			if first := strings.Join(lines[:min(3, len(lines))], ""); !strings.Contains(first, level+"  "+tt.cause) {
				t.Errorf("the first three lines do not say %q:\n%s", tt.cause, first)
			}
			if status := p.Cmd.ProcessState.ExitCode(); status != want {
				t.Errorf("status %d, want %d", status, want)
			}
		})
	}
}

// fails reports whether one of several connections is not answered.
func (i *incident) fails(from *lab.Host, to string) bool {
	for range 12 { // endpoints are drawn
		ctx, stop := context.WithTimeout(context.Background(), 300*time.Millisecond)
		conn, err := from.DialContext(ctx, "tcp", to)
		if err == nil {
			err = echoed(conn)
			conn.Close()
		}
		stop()
		if err != nil {
			return true
		}
	}
	return false
}

// echoed reads what an echo server sends back.
func echoed(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	_, err := fmt.Fscan(conn, new(string))
	if err != nil {
		return err
	}
	return nil
}

// TestCheckHealthy sees that the node of the incidents has nothing to report before they happen.
func TestCheckHealthy(t *testing.T) {
	i := &incident{l: lab.ForTest(t)}
	i.both(t, "config.yaml")
	c := check(t, i.l.Node, "--dial")
	if c.Verdict != "works" || len(c.Findings) > 0 || len(c.NotLookedAt) > 0 || len(c.Clients) < 4 {
		t.Errorf("%+v", c)
	}
}
