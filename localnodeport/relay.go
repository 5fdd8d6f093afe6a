package localnodeport

import (
	"io"
	"net"
	"sync"
)

// relay copies between two connections until both directions have ended, and closes both. The
// end of one direction (FIN) is passed on while the other goes on. A connection that is
// reset, or that cannot be written to any more, resets the other one.
func relay(a, b *net.TCPConn) {
	defer a.Close()
	defer b.Close()
	var both sync.WaitGroup
	both.Go(func() { pass(a, b) })
	both.Go(func() { pass(b, a) })
	both.Wait()
}

// pass copies in one direction. Between two TCP connections io.Copy has the kernel do it
// (splice).
func pass(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	// An error means that the other direction knows already that the connection is gone.
	_ = to.CloseWrite()
}

// reset closes a connection with RST instead of FIN.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
