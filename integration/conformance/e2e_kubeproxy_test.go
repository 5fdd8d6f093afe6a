package conformance

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ti-mo/conntrack"
	corev1 "k8s.io/api/core/v1"
)

// What kube_proxy.go, localhost_nodeports.go and networking.go in test/e2e/network test of the
// process. These tests run the kube-proxy command.

func TestKubeProxy(t *testing.T) {
	t.Run("its URLs answer", testURLsOfKubeProxy)
	t.Run("the close-wait timeout is set", testCloseWaitTimeoutIsSet)
	t.Run("a node port on loopback", testNodePortOnLoopback)
	t.Run("affinity of a node port on loopback", testAffinityOfANodePortOnLoopback)
}

func testURLsOfKubeProxy(t *testing.T) {
	c, _ := startWithCommand(t)
	for _, page := range []struct {
		port         int32
		path, within string
	}{
		{10249, "/proxyMode", "nftables"},
		{10256, "/healthz", "lastUpdated"},
	} {
		c.node.eventually(newAddress(tcp(page.port), "127.0.0.1"), "gets "+page.path, func(to target) error {
			status, body, err := to.get(page.path)
			if err == nil && (status != 200 || !strings.Contains(body, page.within)) {
				err = fmt.Errorf("got %d: %s", status, body)
			}
			return err
		})
	}
}

// closeWaitTimeout is the default of conntrack.tcpCloseWaitTimeout, and closeWait how conntrack
// calls the state of a connection that one side has closed (the kernel's enum tcp_conntrack).
const (
	closeWaitTimeout = time.Hour
	closeWait        = 5
)

func testCloseWaitTimeoutIsSet(t *testing.T) {
	c, _ := startWithCommand(t)
	server := c.runs("e2e-net-server", node2)
	s := c.service("e2e-net-server", ports(tcp(80).to(9000)))
	s.selects(server)
	server.acceptsForGood(9000)
	c.eventually("a connection that its client has closed may stay for an hour", func() error {
		client, err := c.pod.closes(s.clusterIP(tcp(80)).only(0))
		if err != nil {
			return err
		}
		left, err := c.timeLeft(client)
		if err == nil && (left <= closeWaitTimeout-time.Minute || left > closeWaitTimeout) {
			err = fmt.Errorf("it may stay for %v", left)
		}
		return err
	})
}

// acceptsForGood listens, and neither answers nor closes.
func (p *pod) acceptsForGood(port uint16) {
	p.c.t.Helper()
	var listener net.Listener
	if err := p.host.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(p.addrs.IPv4, port).String())
		return err
	}); err != nil {
		p.c.t.Fatal(err)
	}
	p.c.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
		}
	}()
}

// closes opens a connection, closes the client's side of it, and returns where it came from.
func (cl *client) closes(to address) (netip.AddrPort, error) {
	cl.c.t.Helper()
	conn, err := cl.targets(to)[0].dial(answerTimeout)
	if err != nil {
		return netip.AddrPort{}, err
	}
	cl.c.t.Cleanup(func() { conn.Close() })
	return addrPort(conn.LocalAddr()), conn.(*net.TCPConn).CloseWrite()
}

// timeLeft returns the time that node1's conntrack still keeps a connection of client's in state CLOSE_WAIT.
func (c *cluster) timeLeft(client netip.AddrPort) (time.Duration, error) {
	var flows []conntrack.Flow
	if err := c.lab.Node.Do(func() error {
		table, err := conntrack.Dial(nil)
		if err != nil {
			return err
		}
		defer table.Close()
		flows, err = table.Dump(nil)
		return err
	}); err != nil {
		return 0, err
	}
	for _, f := range flows {
		tcp := f.ProtoInfo.TCP
		if tcp != nil && tcp.State == closeWait && f.TupleOrig.IP.SourceAddress == client.Addr() && f.TupleOrig.Proto.SourcePort == client.Port() {
			return time.Duration(f.Timeout) * time.Second, nil
		}
	}
	return 0, fmt.Errorf("no connection from %s in CLOSE_WAIT among %d", client, len(flows))
}

func testNodePortOnLoopback(t *testing.T) {
	c, _ := startWithCommand(t, "--nodeport-addresses", "127.0.0.0/8,::1/128")
	pods := []*pod{c.runs("local", node1), c.runs("remote", node2)}
	s := c.service("agnhost-localhost-nodeport", ports(tcp(9000).to(web)), ofType(corev1.ServiceTypeNodePort))
	s.selects(pods...)
	c.node.reaches(s.nodePort(tcp(9000)).onLoopback(), pods...)
	s.selects(pods[1])
	c.node.reaches(s.nodePort(tcp(9000)).onLoopback(), pods[1])
}

func testAffinityOfANodePortOnLoopback(t *testing.T) {
	c, _ := startWithCommand(t, "--nodeport-addresses", "127.0.0.0/8,::1/128")
	pods := c.threePods()
	s := c.service("agnhost-sticky-localhost", ports(tcp(9000).to(web)), ofType(corev1.ServiceTypeNodePort), affinity(threeHours))
	s.selects(pods...)
	c.node.sticks(s.nodePort(tcp(9000)).onLoopback(), pods...)
}

// onLoopback is the same port of the loopback addresses.
func (a address) onLoopback() address {
	a.addrs = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	return a
}
