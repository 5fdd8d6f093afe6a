package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// subscription receives the messages of one of the kernel's multicast groups, as values of a type.
type subscription[T any] struct {
	socket *socket
	// take adds the values in a message to pending.
	take func(reply) error
	// pending are values that Next has not returned yet.
	pending []T
	// lost is the value that says that messages were lost.
	lost T
}

// subscribe opens a socket that is a member of the group, with a buffer of that size for unread messages. The caller
// sets take.
func subscribe[T any](n *namespace, group, buffer int, lost T) (*subscription[T], error) {
	s, err := n.openSocket()
	if err != nil {
		return nil, err
	}
	if err := s.join(group, buffer); err != nil {
		return nil, errors.Join(fmt.Errorf("nft: join the multicast group %d: %w", group, err), s.conn.Close())
	}
	return &subscription[T]{socket: s, lost: lost}, nil
}

func (s *subscription[T]) add(value T) { s.pending = append(s.pending, value) }

// Close closes the socket.
func (s *subscription[T]) Close() error { return s.socket.conn.Close() }

// Next waits for the next value. It ends with ctx's error when ctx is done. After any other error, subscribe anew. Only
// one goroutine may be in Next.
func (s *subscription[T]) Next(ctx context.Context) (next T, err error) {
	defer s.socket.interruptible(ctx)()
	for len(s.pending) == 0 {
		err := s.socket.receiveUntil(ctx, noDeadline, s.take)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			return s.lost, nil
		case err != nil:
			return next, fmt.Errorf("nft: wait for a notification: %w", err)
		}
	}
	next, s.pending = s.pending[0], s.pending[1:]
	return next, nil
}

// join makes the socket a member of a multicast group, with a buffer of that size for messages that it has not read yet.
func (s *socket) join(group, buffer int) error {
	// SO_RCVBUFFORCE goes beyond net.core.rmem_max, which CAP_NET_ADMIN allows.
	err := s.conn.SetsockoptInt(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer)
	if errors.Is(err, unix.EPERM) {
		err = s.conn.SetsockoptInt(unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
	}
	if err == nil {
		err = s.conn.SetsockoptInt(unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
	}
	return withPrivilege(err)
}
