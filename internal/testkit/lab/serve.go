package lab

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ServeTCP listens at an address of the host ("10.244.1.5:8080", or ":8080" for all of them) until what it returns is
// closed. It runs serve for each connection, on a goroutine of its own, and closes the connection afterwards.
func (h *Host) ServeTCP(at string, serve func(net.Conn)) (io.Closer, error) {
	var listener net.Listener
	if err := h.Do(func() (err error) {
		listener, err = net.Listen("tcp", at)
		return err
	}); err != nil {
		return nil, err
	}
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
	return listener, nil
}

// ListenUDP returns a socket at an address of the host.
func (h *Host) ListenUDP(at netip.AddrPort) (conn *net.UDPConn, err error) {
	err = h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	return conn, err
}

// AnswerUDP answers each datagram to an address of the host until what it returns is closed.
func (h *Host) AnswerUDP(at netip.AddrPort, answer func(datagram []byte, from netip.AddrPort) []byte) (*net.UDPConn, error) {
	conn, err := h.ListenUDP(at)
	if err != nil {
		return nil, err
	}
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = conn.WriteToUDPAddrPort(answer(buffer[:n], from), from)
			}
		}
	}()
	return conn, nil
}

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

// DroppedByQueues returns how many packets the kernel has dropped because a processor's queue was full. All namespaces
// share the queues: it is the second column of softnet_stat, of all processors.
func DroppedByQueues() (dropped uint64) {
	stat, _ := os.ReadFile("/proc/net/softnet_stat")
	for line := range strings.Lines(string(stat)) {
		if columns := strings.Fields(line); len(columns) > 1 {
			n, _ := strconv.ParseUint(columns[1], 16, 32)
			dropped += n
		}
	}
	return dropped
}
