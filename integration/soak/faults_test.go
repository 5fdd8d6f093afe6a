package soak

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// faults are what others do to the node, and what the API server does to the proxy.
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

// restarts are how the process ends and begins anew.
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
