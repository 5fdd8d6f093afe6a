package nft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Config says how to reach the kernel.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in; 0 means the current one. It may be closed
	// once Dial has returned.
	NetNS int
	// Open, if set, opens the sockets of the Conn, instead of the kernel. Tests set it: see package nfttest.
	Open func() (Socket, error)
}

// Conn is a connection to the nf_tables of one network namespace. It is safe for concurrent use, and runs one call
// after another. So use a connection of its own for calls that take long, such as reading large tables: see Another.
//
// After an error that is not the kernel's answer, such as no answer within ten seconds or a full buffer, a Conn
// closes its socket, and the next call opens another socket in the same namespace.
type Conn struct {
	namespace *namespace
	// turn is a lock on socket, closed and owned: who has put a value into it holds the lock. It is a channel, so
	// that a call whose context is done does not wait.
	turn chan struct{}
	// socket is nil after an error, until the next call.
	socket *socket
	closed bool
	// owned are the tables that belong to the socket. The next socket takes them over.
	owned map[identity]*Table
	// patience bounds each socket's wait for the kernel; tests wait less.
	patience time.Duration
	// uncounted hides the kernel's counts of elements, as before Linux 6.15; for tests.
	uncounted bool

	// canDestroy says whether the kernel has NFT_MSG_DESTROYTABLE; nil until the first transaction that needs to know.
	canDestroy atomic.Pointer[bool]
	// echoes says that the kernel has echoed the generation of a commit, as it does since Linux 5.10. turn guards it.
	echoes bool
}

// Dial opens a connection. Commit and the Read methods need CAP_NET_ADMIN.
func Dial(config Config) (*Conn, error) {
	n, err := holdNamespace(config)
	if err != nil {
		return nil, err
	}
	c := &Conn{namespace: n, patience: patience, turn: make(chan struct{}, 1)}
	if _, err := c.open(context.Background()); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return c, nil
}

// Another opens one more connection to the same network namespace. The caller closes it.
func (c *Conn) Another() (*Conn, error) {
	if c.namespace.file == nil {
		return Dial(Config{Open: c.namespace.open})
	}
	return Dial(Config{NetNS: int(c.namespace.file.Fd())})
}

// Close closes the connection, after the call that runs. Tables stay in the kernel, except those with Owner and without
// Persist.
func (c *Conn) Close() error {
	c.turn <- struct{}{}
	defer c.endTurn()
	if c.closed {
		return nil
	}
	c.closed = true
	return errors.Join(c.drop(), c.namespace.Close())
}

// begin waits until no other call uses the connection, or until ctx is done.
func (c *Conn) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Conn) endTurn() { <-c.turn }

// open returns the socket, and opens it if need be.
func (c *Conn) open(ctx context.Context) (*socket, error) {
	if c.closed {
		return nil, fmt.Errorf("nft: %w", net.ErrClosed)
	}
	if c.socket != nil {
		return c.socket, nil
	}
	s, err := c.namespace.openSocket()
	if err != nil {
		return nil, err
	}
	s.patience = c.patience
	c.socket = s
	if err := c.adoptOwned(ctx); err != nil {
		return nil, errors.Join(err, c.drop())
	}
	return s, nil
}

// drop closes the socket and discards the answers that it still holds.
func (c *Conn) drop() error {
	if c.socket == nil {
		return nil
	}
	err := c.socket.conn.Close()
	c.socket = nil
	return err
}

// use calls f with the socket. If f ends with anything but the kernel's answer, the socket is not used again.
func (c *Conn) use(ctx context.Context, f func(*socket) error) error {
	if err := c.begin(ctx); err != nil {
		return err
	}
	defer c.endTurn()
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	if err = f(s); !isAnswer(err) {
		_ = c.drop() // err matters more
		if len(c.owned) > 0 {
			// Until a new socket takes them over, the tables have no owner. So it is opened at once. If that fails, the
			// next call tries again.
			_, _ = c.open(context.WithoutCancel(ctx))
		}
	}
	return err
}

// isAnswer reports whether the call that ended with err has read all of the kernel's answer.
func isAnswer(err error) bool {
	var answer *kernelError
	var refused *CommitError
	var unsent notSent
	return err == nil || errors.As(err, &answer) || errors.As(err, &refused) && !refused.unread ||
		errors.Is(err, ErrTooLarge) || errors.As(err, &unsent)
}

// notSent is the error of a context that was done before anything was sent. So there is no answer to read.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

type query struct {
	typ    uint16 // NFT_MSG_GET…
	flags  netlink.HeaderFlags
	family Family // 0 for a query that concerns all
	table  string // empty for a query that concerns no table
	attrs  netlinkattr.List
}

// ask sends a query and calls each for every message of the answer, which is valid until each returns. It ends with
// ctx's error or each's, and leaves the rest of the answer unread.
func (s *socket) ask(ctx context.Context, q query, each func(reply) error) error {
	request := netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | q.typ), Flags: netlink.Request | q.flags},
		Data:   append(start(q.family, q.table, 64), q.attrs...),
	}
	defer s.interruptible(ctx)()
	if err := s.send(s.appendMessage(nil, &request)); err != nil {
		return fmt.Errorf("send a request: %w", err)
	}
	sequence := s.sequence
	for done := false; !done; {
		err := s.receive(ctx, func(r reply) error {
			if r.Header.Seq != sequence {
				return nil // an answer to an earlier request
			}
			done = !r.has(netlink.Multi) || r.Header.Type == unix.NLMSG_DONE
			return r.handle(each)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// handle passes a message of an answer to each, unless it only ends the answer.
func (r reply) handle(each func(reply) error) error {
	switch r.Header.Type {
	case unix.NLMSG_ERROR, unix.NLMSG_DONE:
		if err := r.refusal(); err != nil {
			return err
		}
	case unix.NLMSG_NOOP:
		return nil
	default:
		if err := each(r); err != nil {
			return err
		}
	}
	if r.Header.Type == unix.NLMSG_DONE && r.has(netlink.DumpInterrupted) {
		return errInterrupted
	}
	return nil
}

// errInterrupted ends a listing that was read to its end, if the kernel reports a concurrent commit.
var errInterrupted = &kernelError{errno: unix.EINTR}

func (c *Conn) ask(ctx context.Context, q query, each func(reply) error) error {
	return withPrivilege(c.use(ctx, func(s *socket) error { return s.ask(ctx, q, each) }))
}

// withPrivilege adds to EPERM which privilege is missing.
func withPrivilege(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w; %s", err, needsPrivilege)
	}
	return err
}

// Generation returns the number of the ruleset, which the kernel raises with every commit of any program to
// the network namespace.
func (c *Conn) Generation(ctx context.Context) (uint32, error) {
	var e Event
	err := c.ask(ctx, query{typ: unix.NFT_MSG_GETGEN}, func(r reply) error { return e.decodeGeneration(r.Data) })
	if err != nil {
		return 0, fmt.Errorf("nft: get generation: %w", err)
	}
	return e.Generation, nil
}
