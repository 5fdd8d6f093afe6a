package localnodeport

import (
	"io"
	"net"
	"sync"
)

// relay copies between two connections until both directions have ended, and closes both. It passes on the
// end of one direction (FIN) while the other continues. If one connection is reset, or cannot be written
// to any more, relay resets the other one.
func relay(a, b *net.TCPConn) {
	defer a.Close()
	defer b.Close()
	var both sync.WaitGroup
	both.Go(func() { pass(a, b) })
	both.Go(func() { pass(b, a) })
	both.Wait()
}

// pass copies in one direction. For two TCP connections io.Copy lets the kernel do it (splice).
func pass(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	// An error means that the connection is gone, which the other direction has noticed already.
	_ = to.CloseWrite()
}

// reset closes a connection with RST instead of FIN.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
