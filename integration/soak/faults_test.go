package soak

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"
)

// faults returns the disturbances of the proxy: by other programs on the node, by signals and by the API server.
func (s *soak) faults(t *testing.T) []kind {
	return []kind{
		{"nft flush ruleset", 1, func() { s.gap(t, "flush ruleset\n") }},
		{"nft delete table", 1, func() { s.gap(t, "delete table ip kube-proxy\n") }},
		{"foreign elements that change where packets go", 1, func() { s.gap(t, "add element ip kube-proxy service-ips { * : drop }\n") }},
		{"a foreign chain in our table", 1, func() { lab.Nft(t, s.lab.Node, "add chain ip6 kube-proxy theirs\n", "-f", "-") }},
		{"a firewall that commits often", 2, func() { s.firewall(t) }},
		{"the API server drops its connections", 1, s.server.DropConnections},
		{"the API server ends its watches and forgets", 1, func() { s.server.Compact(); s.server.EndWatches() }},
		{"the API server fails for a second", 1, func() { s.refuse(time.Second) }},
		{"the proxy is stopped for two seconds", 1, func() { s.freeze(t, 2*time.Second) }},
	}
}

// restarts returns the ways in which the process ends and starts again.
func (s *soak) restarts(t *testing.T) []kind {
	return []kind{
		{"kill -9 and a restart", 1, func() {
			if err := s.proxy.Cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = s.proxy.Wait()
			s.start(t)
		}},
		{"SIGTERM and a restart", 1, func() {
			s.proxy.Says(t, "Version info") // it may just have been started, and a process that has not begun just ends
			if err := s.proxy.Stop(t); err != nil {
				t.Errorf("SIGTERM ended the proxy with %v", err)
			}
			s.start(t)
		}},
	}
}

// gap has somebody break the rules, and waits until the proxy has mended them. Connections may fail meanwhile.
func (s *soak) gap(t *testing.T, commands string) {
	t.Helper()
	s.awaitWanted(t) // a proxy that starts just now has not mended anything yet
	begin := time.Now()
	lab.Nft(t, s.lab.Node, commands, "-f", "-")
	s.awaitWanted(t)
	s.traffic.excuse(begin, time.Now())
}

// firewall is another program with a table of its own.
func (s *soak) firewall(t *testing.T) {
	t.Helper()
	var commands strings.Builder
	fmt.Fprintln(&commands, "add table inet firewall\nadd chain inet firewall input { type filter hook input priority 10; }")
	for port := range 20 {
		fmt.Fprintf(&commands, "add rule inet firewall input tcp dport %d counter accept\n", 40000+port)
	}
	for range 3 {
		lab.Nft(t, s.lab.Node, commands.String(), "-f", "-")
	}
	lab.Nft(t, s.lab.Node, "", "delete", "table", "inet", "firewall")
}

func (s *soak) refuse(howLong time.Duration) {
	const plural = "endpointslices"
	s.server.Refuse(plural, 500)
	s.server.EndWatches()
	time.Sleep(howLong)
	s.server.Refuse(plural, 0)
}

func (s *soak) freeze(t *testing.T, howLong time.Duration) {
	t.Helper()
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := s.proxy.Cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if signal == syscall.SIGSTOP {
			time.Sleep(howLong)
		}
	}
}

// catchingUp bounds the time until the proxy is up to date. client-go waits for up to a minute before it asks an
// API server again that failed.
const catchingUp = 2 * time.Minute

// awaitWanted waits until the kernel has the tables that belong to the objects.
func (s *soak) awaitWanted(t *testing.T) {
	t.Helper()
	want := s.cluster.wanted(t)
	await.Within(t, catchingUp, "the kernel has the wanted tables", func() error { return lab.TableError(s.conn, want) })
}

// checkpoint stops the changes and looks whether all is right.
func (s *soak) checkpoint(t *testing.T) {
	t.Helper()
	s.awaitWanted(t)
	await.Until(t, "no UDP flow leads to what is gone", func() error { return s.staleFlow(t) })
	for _, failure := range s.traffic.takeFailures() {
		t.Error(failure)
	}
	s.checkpoints++
}

// staleFlow returns an error if connection tracking has a UDP flow of the flapping Service that leads to a pod that
// is not its endpoint, or nowhere.
func (s *soak) staleFlow(t *testing.T) error {
	t.Helper()
	endpoints := map[netip.Addr]bool{}
	for _, family := range []string{"IPv4", "IPv6"} {
		for _, e := range s.cluster.slices[flapping+"-"+family].Endpoints {
			endpoints[netip.MustParseAddr(e.Addresses[0])] = true
		}
	}
	conn, err := conntrack.Dial(&netlink.Config{NetNS: int(s.lab.Node.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	list, err := conn.Dump(nil)
	if err != nil {
		return err
	}
	for _, flow := range list {
		to := netip.AddrPortFrom(flow.TupleOrig.IP.DestinationAddress, flow.TupleOrig.Proto.DestinationPort)
		if flow.TupleOrig.Proto.Protocol == unix.IPPROTO_UDP && slices.Contains(flappingFrontends, to) && !endpoints[flow.TupleReply.IP.SourceAddress] {
			return fmt.Errorf("%s leads to %s, which is no endpoint", to, flow.TupleReply.IP.SourceAddress)
		}
	}
	return nil
}

// flappingFrontends are the frontends of the Service with changing endpoints.
var flappingFrontends = []netip.AddrPort{
	netip.MustParseAddrPort("10.96.2.1:80"), netip.MustParseAddrPort("[fd00:10:96::2:1]:80"),
	netip.MustParseAddrPort("192.168.0.1:32001"), netip.MustParseAddrPort("[fd00:1::1]:32001"),
}
