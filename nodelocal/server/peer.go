package server

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// namedPeers adds the name and the connection of the peer to its AuthInfo.
type namedPeers struct {
	credentials.TransportCredentials
	// refused is called for each handshake that failed.
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
	if err != nil && !errors.Is(err, io.EOF) { // without a word it was a check whether the port is open
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
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				pid = process(cred.Pid)
			}
		})
	}
	return pid
}

// nodeUser is the prefix of a node's name in a certificate (Kubernetes' Node authorizer).
const nodeUser = "system:node:"

// authorize returns an error unless the peer may watch the node. Without TLS it has come over a
// socket of this machine, whose mode says who may.
func (s *Server) authorize(node string, peer identity) error {
	if s.options.TLS == nil || s.options.AnyNode {
		return nil
	}
	info, _ := peer.AuthInfo.(credentials.TLSInfo)
	if len(info.State.PeerCertificates) == 0 {
		return status.Errorf(codes.PermissionDenied,
			"the client has no certificate, and to watch node %q it must have one for %q", node, nodeUser+node)
	}
	cert := info.State.PeerCertificates[0]
	names := slices.Concat([]string{cert.Subject.CommonName}, cert.DNSNames)
	for _, uri := range cert.URIs {
		names = append(names, uri.String())
	}
	if slices.Contains(names, nodeUser+node) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "the client's certificate is for %.1000q, and to watch node %q it must be for %q; "+
		"--authorize-node-names=false lets every certificate watch every node", names, node, nodeUser+node)
}
