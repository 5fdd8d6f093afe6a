package server

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// conn is a connection of a client.
type conn struct {
	net.Conn
	admission *admission
	// name is the client's name in logs: "process 4711" on a unix socket, else an IP address.
	name string

	// The mutex of admission guards the fields below.

	// firstCall closes the connection, unless a call stops it.
	firstCall *time.Timer
	// load is the peer's; nil while the peer is not known.
	load   *peerLoad
	closed bool
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.admission.part(c)
	return c.Conn.Close()
}

// bounded is a listener whose connections the server counts.
type bounded struct {
	net.Listener
	server *Server
}

// Accept implements net.Listener. It closes a connection beyond the limits, or an older one in its place.
func (b bounded) Accept() (net.Conn, error) {
	for {
		raw, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := b.server.accept(raw); c != nil {
			return c, nil
		}
	}
}

// accept returns a new connection, nil if there are too many.
func (s *Server) accept(raw net.Conn) *conn {
	c := &conn{Conn: raw, admission: s.admission, name: nameOf(raw)}
	s.admission.begin(c, func() { s.refuse(c, RefusedSilent, "no call came in time") })
	if s.options.TLS != nil {
		if oldest := s.admission.shake(c); oldest != nil {
			s.refuse(oldest, RefusedConnections, "too many connections were about to begin, from its address or from all")
		}
		return c
	}
	if !s.join(c, userOf(raw)) {
		return nil
	}
	return c
}

// join counts a connection for its peer, or refuses it.
func (s *Server) join(c *conn, peer string) bool {
	if s.admission.join(c, peer) {
		return true
	}
	s.refuse(c, RefusedConnections, "there are too many, of "+peer+" or of all")
	return false
}

// refuse closes and counts a connection. It logs at a limited rate, because every client that reaches the port can
// cause it.
func (s *Server) refuse(c *conn, reason, why string) {
	s.refused.Do(func() {
		s.options.Logger.Info("Refused a connection; of many only some are logged", "peer", c.name, "reason", why)
	})
	s.options.Hooks.OnRefused(reason)
	_ = c.Close()
}

var errStreams = status.Error(codes.ResourceExhausted, "too many calls, of all clients or of this one; try again later")

// admit admits a call of any service before gRPC reads its request, and counts the call until it ends.
func (s *Server) admit(ctx context.Context, _ *tap.Info) (context.Context, error) {
	peer := identify(ctx)
	if err := s.authorize(peer); err != nil {
		s.options.Hooks.OnRefused(RefusedPermission)
		return ctx, err
	}
	if !s.admission.enter(peer.conn) {
		s.options.Hooks.OnRefused(RefusedStreams)
		return ctx, errStreams
	}
	context.AfterFunc(ctx, func() { s.admission.leave(peer.conn) })
	return ctx, nil
}
