package labtest

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/integration/lab"
)

// ServeTCP listens at an address of the host ("10.244.1.5:8080", or ":8080" for all of them) until the test ends. It
// runs serve for each connection, on a goroutine of its own, and closes the connection afterwards.
func ServeTCP(t testing.TB, h *lab.Host, at string, serve func(net.Conn)) {
	t.Helper()
	var listener net.Listener
	if err := h.Do(func() (err error) {
		listener, err = net.Listen("tcp", at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
}

// Echo sends back what arrives on a connection.
func Echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

// ListenUDP returns a socket at an address of the host. It is closed when the test ends.
func ListenUDP(t testing.TB, h *lab.Host, at netip.AddrPort) (conn *net.UDPConn) {
	t.Helper()
	if err := h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	LongQueue(t, conn)
	return conn
}

// LongQueue lets a socket keep 4 MB of datagrams that nobody has read yet, whatever the sysctl says. A busy or emulated
// machine does not read for a second at a time, and loses those that find no room.
func LongQueue(t testing.TB, conn *net.UDPConn) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var refused error
	if err := raw.Control(func(fd uintptr) { refused = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) }); err != nil {
		t.Fatal(err)
	}
	if refused != nil {
		t.Fatal(refused)
	}
}

// AnswerUDP answers each datagram to an address of the host until the test ends. Datagrams are cut at 64 bytes.
func AnswerUDP(t testing.TB, h *lab.Host, at netip.AddrPort, answer func(datagram []byte) []byte) {
	t.Helper()
	conn := ListenUDP(t, h, at)
	go func() {
		buffer := make([]byte, 64)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = conn.WriteToUDPAddrPort(answer(buffer[:n]), from)
			}
		}
	}()
}
