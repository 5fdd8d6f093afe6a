package takeover

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// The endpoints of testdata/manifests.yaml, by the last number of their address: .5 and .6 on node-1, .6 on node-2.
var (
	ownPods     = []lab.Addrs{pod(1, 5), pod(1, 6)}
	remotePod   = pod(2, 6)
	servedPorts = []uint16{8080, 5353}
)

func pod(node, host int) lab.Addrs {
	return lab.Addrs{
		IPv4: netip.MustParseAddr(fmt.Sprintf("10.244.%d.%d", node, host)),
		IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::%d", node, host)),
	}
}

// serveEndpoints makes the endpoints and has each answer with its address.
func serveEndpoints(t *testing.T, l *lab.Lab) {
	t.Helper()
	for i, addrs := range ownPods {
		h, err := l.AddPod(fmt.Sprintf("pod-%d", i), addrs.IPv4, addrs.IPv6)
		if err != nil {
			t.Fatal(err)
		}
		serveAt(t, h, addrs)
	}
	for _, addr := range []netip.Addr{remotePod.IPv4, remotePod.IPv6} {
		if err := l.AddRemoteAddr(addr); err != nil {
			t.Fatal(err)
		}
	}
	serveAt(t, l.Remote, remotePod)
}

func serveAt(t *testing.T, h *lab.Host, addrs lab.Addrs) {
	t.Helper()
	for _, addr := range []netip.Addr{addrs.IPv4, addrs.IPv6} {
		for _, port := range servedPorts {
			if err := h.Do(func() error { return serve(t, netip.AddrPortFrom(addr, port)) }); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// serve answers each line and each datagram to at with its address, until the test ends.
func serve(t *testing.T, at netip.AddrPort) error {
	listener, err := net.Listen("tcp", at.String())
	if err != nil {
		return err
	}
	t.Cleanup(func() { listener.Close() })
	datagrams, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	t.Cleanup(func() { datagrams.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerLines(conn, at)
		}
	}()
	go func() {
		buffer := make([]byte, 64)
		for {
			_, peer, err := datagrams.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = datagrams.WriteToUDPAddrPort([]byte(at.String()+"\n"), peer)
			}
		}
	}()
	return nil
}

func answerLines(conn net.Conn, at netip.AddrPort) {
	defer conn.Close()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if _, err := fmt.Fprintln(conn, at); err != nil {
			return
		}
	}
}

// streamsOf returns what clients do with the Services in testdata/manifests.yaml.
func streamsOf(l *lab.Lab) []*stream {
	var (
		all       = []lab.Addrs{pod(1, 5), pod(1, 6), pod(2, 6)}
		onNode1   = []lab.Addrs{pod(1, 5)}
		dns       = []lab.Addrs{pod(1, 6), pod(2, 6)}
		inside    = []lab.Addrs{pod(1, 6)}
		localOnes = []lab.Addrs{pod(1, 5), pod(2, 6)}
	)
	return []*stream{
		{from: l.Client, network: "tcp", to: "10.96.0.10:80", endpoints: at(all, 8080)},
		{from: l.Client, network: "tcp", to: "[fd00:10:96::10]:80", endpoints: at(all, 8080)},
		{from: l.Node, network: "tcp", to: "10.96.0.10:80", endpoints: at(all, 8080)},
		{from: l.Remote, network: "tcp", to: "192.168.0.1:30080", endpoints: at(all, 8080)},
		{from: l.Outside, network: "tcp", to: "192.0.2.10:80", endpoints: at(all, 8080)},
		{from: l.Outside, network: "tcp", to: "[fd00:1::1]:30080", endpoints: at(all, 8080)},
		{from: l.Outside, network: "tcp", to: "192.0.2.20:80", endpoints: at(onNode1, 8080)},
		{from: l.Client, network: "tcp", to: "192.0.2.20:80", endpoints: at(localOnes, 8080)},
		{from: l.Client, network: "tcp", to: "10.96.0.50:80", endpoints: at(inside, 8080)},
		{from: l.Client, network: "tcp", to: "10.96.0.40:80", endpoints: at(all, 8080), sticky: true},
		{from: l.Client, network: "tcp", to: "203.0.113.30:53", endpoints: at(dns, 5353)},
		{from: l.Client, network: "udp", to: "10.96.0.30:53", endpoints: at(dns, 5353)},
		{from: l.Outside, network: "udp", to: "[2001:db8:203::30]:53", endpoints: at(dns, 5353)},
		{from: l.Client, network: "tcp", to: "10.96.0.60:80", want: refused},
		{from: l.Client, network: "tcp", to: "10.96.0.10:81", want: refused},
		{from: l.Remote, network: "tcp", to: "192.0.2.10:80", want: dropped},
		{from: l.Outside, network: "tcp", to: "192.0.2.70:80", want: dropped},
	}
}

func at(pods []lab.Addrs, port uint16) (endpoints []string) {
	for _, p := range pods {
		for _, addr := range []netip.Addr{p.IPv4, p.IPv6} {
			endpoints = append(endpoints, netip.AddrPortFrom(addr, port).String())
		}
	}
	return endpoints
}
