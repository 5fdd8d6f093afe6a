package lab

import (
	"io"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// ServeTCP is Host.ServeTCP until the test ends.
func ServeTCP(t testing.TB, h *Host, at string, serve func(net.Conn)) {
	t.Helper()
	closeLater(t)(h.ServeTCP(at, serve))
}

// Echo sends back what arrives on a connection.
func Echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

// ListenUDP is Host.ListenUDP; the socket is closed when the test ends.
func ListenUDP(t testing.TB, h *Host, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	conn, err := h.ListenUDP(at)
	closeLater(t)(conn, err)
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

// AnswerUDP is Host.AnswerUDP until the test ends.
func AnswerUDP(t testing.TB, h *Host, at netip.AddrPort, answer func(datagram []byte) []byte) {
	t.Helper()
	conn, err := h.AnswerUDP(at, func(datagram []byte, _ netip.AddrPort) []byte { return answer(datagram) })
	closeLater(t)(conn, err)
	LongQueue(t, conn)
}

// closeLater returns a function that fails the test with an error, or else closes something when the test ends.
func closeLater(t testing.TB) func(io.Closer, error) {
	return func(c io.Closer, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
}
