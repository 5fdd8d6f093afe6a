package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// namedPeers adds the connection of the peer, and the names in its certificate, to its AuthInfo.
type namedPeers struct {
	credentials.TransportCredentials
	server *Server
}

// identity is a peer.
type identity struct {
	credentials.AuthInfo
	conn *conn
	// certified says that the peer has a certificate; names are the names in it.
	certified bool
	names     []string
}

// ServerHandshake implements credentials.TransportCredentials.
func (n namedPeers) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	out, info, err := n.TransportCredentials.ServerHandshake(raw)
	id := identity{AuthInfo: info, conn: raw.(*conn)} // from bounded
	if err != nil {
		// A connection without a byte was a port check, and one that the server closed is counted already.
		if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
			n.server.refuse(id.conn, RefusedTLS, "the TLS handshake failed: "+err.Error())
		}
		return out, id, err
	}
	if secure, is := info.(credentials.TLSInfo); is {
		id.readNames(secure)
		if !n.server.join(id.conn, n.server.peerOf(id)) {
			return out, id, net.ErrClosed
		}
	}
	return out, id, nil
}

// readNames reads the names that the certificate is for.
func (id *identity) readNames(secure credentials.TLSInfo) {
	if len(secure.State.PeerCertificates) == 0 {
		return
	}
	id.certified = true
	cert := secure.State.PeerCertificates[0]
	id.names = slices.Concat([]string{cert.Subject.CommonName}, cert.DNSNames)
	for _, uri := range cert.URIs {
		id.names = append(id.names, uri.String())
	}
}

// Clone implements credentials.TransportCredentials.
func (n namedPeers) Clone() credentials.TransportCredentials {
	return namedPeers{n.TransportCredentials.Clone(), n.server}
}

// identify returns the peer of a call.
func identify(ctx context.Context) identity {
	p, _ := peer.FromContext(ctx) // gRPC has set it
	return p.AuthInfo.(identity)
}

// peerOf returns the peer over TLS: the nodes of the certificate. Where all nodes may share one certificate, or need
// none, the address belongs to the peer.
func (s *Server) peerOf(id identity) string {
	if nodes := id.nodes(); len(nodes) > 0 && !s.options.AnyNode {
		return fmt.Sprintf("%.1000q", nodes)
	}
	return fmt.Sprintf("%s with a certificate for %.1000q", id.conn.name, id.names)
}

// nodeUser is the prefix of a node's name in a certificate (Kubernetes' Node authorizer).
const nodeUser = "system:node:"

// nodes returns the names of nodes in the certificate.
func (id identity) nodes() []string {
	return slices.DeleteFunc(slices.Clone(id.names), func(name string) bool { return !strings.HasPrefix(name, nodeUser) })
}

// authorize returns an error unless the peer may call. Without TLS the mode of the unix socket has authorized it.
func (s *Server) authorize(id identity) error {
	switch {
	case s.options.TLS == nil || s.options.AnyNode || len(id.nodes()) > 0:
		return nil
	case !id.certified:
		return status.Errorf(codes.PermissionDenied, "the client has no certificate, and must have one for its node, %q", nodeUser+"NAME")
	}
	return status.Errorf(codes.PermissionDenied, "the client's certificate is for %.1000q, and must be for its node, %q; "+
		"--authorize-node-names=false lets every certificate watch every node", id.names, nodeUser+"NAME")
}

// authorizeNode returns an error unless the peer may watch the node.
func (s *Server) authorizeNode(id identity, node string) error {
	if s.options.TLS == nil || s.options.AnyNode || slices.Contains(id.names, nodeUser+node) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "the client's certificate is for %.1000q, and to watch node %q it must be for %q; "+
		"--authorize-node-names=false lets every certificate watch every node", id.names, node, nodeUser+node)
}

// nameOf names the client of a connection in logs.
func nameOf(raw net.Conn) string {
	if local, ok := raw.RemoteAddr().(process); ok {
		return local.String()
	}
	host, _, _ := net.SplitHostPort(raw.RemoteAddr().String())
	return host
}

// userOf returns the peer without TLS: a user of this machine.
func userOf(raw net.Conn) string {
	if local, ok := raw.RemoteAddr().(process); ok {
		return fmt.Sprintf("user %d", local.user)
	}
	return nameOf(raw)
}

// process is the address of the other side of a unix socket.
type process struct {
	number int32
	user   uint32
}

// Network implements net.Addr.
func (process) Network() string { return "unix" }

// String implements net.Addr.
func (p process) String() string { return fmt.Sprintf("process %d", p.number) }

// localConn is a connection over a unix socket whose remote address is the client's process.
type localConn struct {
	net.Conn
	peer process
}

// RemoteAddr implements net.Conn.
func (c localConn) RemoteAddr() net.Addr { return c.peer }

// processOf returns the process that connected; its number is 0 if the kernel does not know it.
func processOf(conn *net.UnixConn) (p process) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				p = process{cred.Pid, cred.Uid}
			}
		})
	}
	return p
}
