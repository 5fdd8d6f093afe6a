package localnodeport_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/localnodeport"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
)

// With the rules of the proxy in the kernel, which answer node ports on the node's other
// addresses: neither gets in the way of the other.
func testForwarderBesideTheRules(t *testing.T) {
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	config := compiler.Default()
	config.NodePortAddresses.CIDRs = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	backend, err := proxy.NewBackend(conn, config, proxy.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Cleanup(context.Background(), conn, "")

	changes := &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{}, Node: &model.Node{Name: "node-1"}}
	servers := map[model.Family]netip.AddrPort{}
	for _, f := range families {
		changes.Node.IPs = append(changes.Node.IPs, netip.MustParseAddr(nodeAddrs[f.index]))
		servers[f.Family] = f.echo(t, 1, 8080)
		f.answerUDP(t, servers[f.Family])
		for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
			port := f.service("web", 30080, servers[f.Family])
			port.ID.Protocol = protocol
			changes.Ports[port.ID] = port
		}
	}
	if err := backend.Sync(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	n := start(t, localnodeport.Options{})
	forEachFamily(t, func(t *testing.T, f family) { expectRefused(t, f.at(30080)) })
	n.Apply(n.ctx, changes)
	forEachFamily(t, func(t *testing.T, f family) {
		expect(t, f.at(30080), servers[f.Family])
		expect(t, f.node(30080), servers[f.Family])
		if err := askUDP(f.node(30080)); err != nil {
			t.Errorf("UDP to the node's address: %v", err)
		}
		if err := askUDP(f.at(30080)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("UDP to loopback: got error %v, want it refused", err)
		}
		// A rule that rejects would cut off a program of the node.
		f.answerUDP(t, netip.MustParseAddrPort(f.at(30080)))
		if err := askUDP(f.at(30080)); err != nil {
			t.Errorf("UDP to a program of the node: %v", err)
		}
	})
	if err := askSCTP(30080); err != nil {
		t.Errorf("SCTP to loopback: %v", err)
	}
	n.Apply(n.ctx, &model.Changes{Full: true})
	forEachFamily(t, func(t *testing.T, f family) {
		expectRefused(t, f.at(30080))
		expect(t, f.node(30080), servers[f.Family])
	})
}

// answerUDP answers one datagram.
func (f family) answerUDP(t *testing.T, at netip.AddrPort) {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		if n, from, err := conn.ReadFromUDPAddrPort(make([]byte, 100)); err == nil {
			conn.WriteToUDPAddrPort(make([]byte, n), from)
		}
	}()
}

func askUDP(to string) error {
	conn, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte("?")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 100))
	return err
}

// askSCTP asks for an association at 127.0.0.1 and returns an error unless the kernel refuses: by
// ICMP when it has no SCTP, by an ABORT when it has. It asks from another loopback
// address, for the kernel does not refuse what a raw socket listens for.
func askSCTP(port uint16) error {
	conn, err := net.DialIP("ip4:132", &net.IPAddr{IP: net.IPv4(127, 0, 0, 2)}, &net.IPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(initChunk(port)); err != nil {
		return err
	}
	answer := make([]byte, 1500)
	size, err := conn.Read(answer)
	if errors.Is(err, syscall.ENOPROTOOPT) {
		return nil
	}
	const header, abort = 12, 6
	if err != nil || size <= header || answer[header] != abort {
		return fmt.Errorf("got % x, error %v, want an ABORT or ICMP protocol unreachable", answer[:size], err)
	}
	return nil
}

// initChunk is an SCTP packet with an INIT (RFC 9260, section 3.3.2).
func initChunk(port uint16) []byte {
	p := make([]byte, 32)
	binary.BigEndian.PutUint16(p[0:], 40000)
	binary.BigEndian.PutUint16(p[2:], port)
	p[12] = 1
	binary.BigEndian.PutUint16(p[14:], 20)
	binary.BigEndian.PutUint32(p[16:], 1)     // initiate tag
	binary.BigEndian.PutUint32(p[20:], 65536) // receiver window
	binary.BigEndian.PutUint16(p[24:], 1)     // streams out
	binary.BigEndian.PutUint16(p[26:], 1)     // streams in
	binary.BigEndian.PutUint32(p[28:], 1)     // initial TSN
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}

// What gets to 127.0.0.1 from elsewhere when another proxy left route_localnet behind looks
// like this.
func testClientsThatAreNotLoopbackAreReset(t *testing.T) {
	f := families[0]
	n := start(t, localnodeport.Options{})
	served := make(chan bool, 10)
	n.apply(f.service("web", 30080, f.serve(t, 1, 8080, func(*net.TCPConn) { served <- true })))
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(nodeAddrs[0])}, Timeout: patience}
	conn, err := dialer.Dial("tcp", f.at(30080))
	if err == nil {
		conn.SetDeadline(time.Now().Add(patience))
		_, err = io.ReadAll(conn)
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got error %v, want a reset", err)
	}
	if len(served) > 0 {
		t.Error("the endpoint was reached")
	}
}

// A client that connects while there are no file descriptors left waits until there are.
func testOutOfFileDescriptors(t *testing.T) {
	f := families[0]
	n := start(t, localnodeport.Options{})
	server := f.echo(t, 1, 8080)
	n.apply(f.service("web", 30080, server))
	expect(t, f.at(30080), server)

	// Something else may give a descriptor back at the wrong moment. Then the client is
	// accepted, cannot be connected to an endpoint, and is reset; so several have a try.
	var failure error
	for range 20 {
		client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if failure = waitForDescriptors(t, n, os.NewFile(uintptr(client), "client"), server); failure == nil {
			break
		}
	}
	if failure != nil {
		t.Error(failure)
	}
	expect(t, f.at(30080), server)
}

// waitForDescriptors has a client, which is a socket already, connect while there are no
// descriptors, and returns an error unless it is served when there are some again.
func waitForDescriptors(t *testing.T, n *node, client *os.File, server netip.AddrPort) error {
	defer client.Close()
	failures := func() int {
		return len(n.log.with("Cannot accept connections to a node port on loopback", `"service"="shop/web:http"`, "too many open files"))
	}
	before := failures()
	giveBack := exhaust(t)
	err := unix.Connect(int(client.Fd()), &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 30080})
	for deadline := time.Now().Add(time.Second); failures() == before && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	waited := failures() > before
	giveBack()
	if err != nil || !waited {
		return fmt.Errorf("the client did not have to wait, error %v", err)
	}
	conn, err := net.FileConn(client)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if greeting, err := bufio.NewReader(conn).ReadString('\n'); greeting != server.String()+"\n" {
		return fmt.Errorf("the client that had to wait got %q, error %v", greeting, err)
	}
	return nil
}

// exhaust makes this process have no descriptor left until the returned function is called.
func exhaust(t *testing.T) (giveBack func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	lowest, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(lowest)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(lowest), Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}
}
