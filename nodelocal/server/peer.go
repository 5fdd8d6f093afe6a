package server

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// namedPeers adds to what is known of a peer who it is, and its connection.
type namedPeers struct {
	credentials.TransportCredentials
	// refused is told of each handshake that failed.
	refused func(peer string, err error)
}

// identity is a peer.
type identity struct {
	credentials.AuthInfo
	// name is "process 4711" on a unix socket, else an IP address.
	name string
	conn net.Conn
}

func (n namedPeers) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := n.TransportCredentials.ServerHandshake(raw)
	if err != nil && !errors.Is(err, io.EOF) { // who says nothing and goes asks only whether the port is open
		n.refused(nameOf(raw), err)
	}
	return conn, identity{info, nameOf(raw), raw}, err
}

func (n namedPeers) Clone() credentials.TransportCredentials {
	return namedPeers{n.TransportCredentials.Clone(), n.refused}
}

// identify returns the peer of a call.
func identify(ctx context.Context) identity {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return identity{}
	}
	id, _ := p.AuthInfo.(identity)
	return id
}

func nameOf(conn net.Conn) string {
	if local, ok := conn.RemoteAddr().(process); ok {
		return local.String()
	}
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	return host
}

// process is the address of the other side of a unix socket: its process number.
type process int32

// Network implements net.Addr.
func (process) Network() string { return "unix" }

// String implements net.Addr.
func (p process) String() string { return "process " + strconv.Itoa(int(p)) }

// localConn names the other side of a unix socket by its process, also inside of another net.Conn.
type localConn struct {
	net.Conn
	peer process
}

// RemoteAddr implements net.Conn.
func (c localConn) RemoteAddr() net.Addr { return c.peer }

// processOf returns the process that connected, 0 if the kernel does not say.
func processOf(conn *net.UnixConn) (pid process) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = process(cred.Pid)
		}
	})
	return pid
}
