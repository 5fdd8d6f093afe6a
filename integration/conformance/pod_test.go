package conformance

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// The ports that every pod serves, over TCP and UDP.
const (
	web   = 8080
	admin = 8081
)

// pod is a pod that answers with its name and with who it sees. It can dial as well.
type pod struct {
	client
	node  string
	addrs lab.Addrs
	// ready says that it passes its readiness probe, terminating that it was deleted and is in
	// its grace period. What it serves it serves either way.
	ready, terminating bool
	services           []*service
	servers            []io.Closer
}

// runs starts a ready pod on a node.
func (c *cluster) runs(name, node string) *pod {
	c.t.Helper()
	c.lastPod++
	network := 2
	if node == node1 {
		network = 1
	}
	addrs := lab.Addrs{
		IPv4: netip.MustParseAddr(fmt.Sprintf("10.244.%d.%d", network, c.lastPod)),
		IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::%d", network, c.lastPod)),
	}
	p := &pod{node: node, addrs: addrs, ready: true}
	p.client = client{c: c, name: name}
	if err := p.attach(); err != nil {
		c.t.Fatal(err)
	}
	p.serve(web)
	p.serve(admin)
	return p
}

// attach does what a network plugin does: a pod of node1 gets a namespace of its own, one of
// another node is an address behind node2.
func (p *pod) attach() (err error) {
	l := p.c.lab
	if p.node == node1 {
		p.host, err = l.AddPod(p.name, p.addrs.IPv4, p.addrs.IPv6)
		return err
	}
	p.host, p.from = l.Remote, p.addrs
	return errors.Join(l.AddRemoteAddr(p.addrs.IPv4), l.AddRemoteAddr(p.addrs.IPv6))
}

// runsOnHostNetwork starts a ready pod with the addresses of its node.
func (c *cluster) runsOnHostNetwork(name, node string) *pod {
	c.t.Helper()
	p := &pod{node: node, addrs: lab.NodeAddrs, ready: true}
	p.client = client{c: c, name: name, host: c.lab.Node}
	if node == node2 {
		p.addrs, p.host = lab.RemoteAddrs, c.lab.Remote
	}
	p.serve(web)
	return p
}

// terminates begins the pod's grace period: it goes on serving.
func (p *pod) terminates() {
	p.c.t.Helper()
	p.terminating = true
	p.republish()
}

// becomes changes whether the pod passes its readiness probe.
func (p *pod) becomes(ready bool) {
	p.c.t.Helper()
	p.ready = ready
	p.republish()
}

func (p *pod) republish() {
	p.c.t.Helper()
	for _, s := range p.services {
		if s.pods != nil {
			s.publish()
		}
	}
}

// serve answers on a port of all the pod's addresses.
func (p *pod) serve(port uint16) {
	p.c.t.Helper()
	for _, addr := range []netip.Addr{p.addrs.IPv4, p.addrs.IPv6} {
		at := netip.AddrPortFrom(addr, port)
		for _, server := range []func(netip.AddrPort) (io.Closer, error){p.serveTCP, p.serveUDP} {
			closer, err := server(at)
			if err != nil {
				p.c.t.Fatal(err)
			}
			p.servers = append(p.servers, closer)
		}
	}
	p.c.t.Cleanup(p.closeServers)
}

func (p *pod) closeServers() {
	for _, server := range p.servers {
		server.Close()
	}
	p.servers = nil
}

// serveTCP says hello to whoever connects and then sends back what it gets.
func (p *pod) serveTCP(at netip.AddrPort) (io.Closer, error) {
	return p.host.ServeTCP(at.String(), func(conn net.Conn) {
		if _, err := io.WriteString(conn, p.hello(conn.RemoteAddr())); err == nil {
			_, _ = io.Copy(conn, conn)
		}
	})
}

// serveUDP answers each datagram with a hello and what was in it.
func (p *pod) serveUDP(at netip.AddrPort) (io.Closer, error) {
	return p.host.AnswerUDP(at, func(datagram []byte, from netip.AddrPort) []byte {
		return append([]byte(p.hello(net.UDPAddrFromAddrPort(from))), datagram...)
	})
}

// hello is one line with the pod's name and who it sees.
func (p *pod) hello(peer net.Addr) string { return p.name + " " + peer.String() + "\n" }

// answer is a pod's answer to a client.
type answer struct {
	pod  string
	sees netip.AddrPort
	// rest is the text after the hello.
	rest string
}

func parseAnswer(text string) (answer, error) {
	hello, rest, _ := strings.Cut(text, "\n")
	name, peer, _ := strings.Cut(hello, " ")
	sees, err := netip.ParseAddrPort(peer)
	if err != nil {
		return answer{}, fmt.Errorf("not an answer: %q", hello)
	}
	return answer{name, netip.AddrPortFrom(sees.Addr().Unmap(), sees.Port()), rest}, nil
}
