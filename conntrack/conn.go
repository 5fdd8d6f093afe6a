package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/model"
	"golang.org/x/sys/unix"
)

// Conn searches the connection tracking table of one network namespace. It is safe for concurrent use. Each search
// opens its own sockets, so a late answer is never taken for the answer to a later request.
type Conn struct {
	netNS int
	// timeout bounds the kernel's time for one datagram.
	timeout time.Duration
	// eventBuffer is the size of the buffer for unread events, in bytes. The kernel charges about 1 kB for each event.
	eventBuffer int
}

// answerTimeout is far longer than the kernel needs for one datagram: it skips a million entries in 0.1 s.
const answerTimeout = 10 * time.Second

// Dial returns a Conn for the network namespace of the file descriptor, which must stay open while the Conn is in use;
// 0 stands for the current namespace. Listing and deleting need CAP_NET_ADMIN.
func Dial(netNS int) (*Conn, error) {
	c := &Conn{netNS: netNS, timeout: answerTimeout, eventBuffer: 32 << 20}
	s, err := c.open(0)
	if err != nil {
		return nil, err
	}
	return c, s.nl.Close()
}

// Stats is the result of a search for stale flows.
type Stats struct {
	// Listed, Deleted and Refused count the entries that the kernel listed, deleted, and refused to delete.
	Listed, Deleted, Refused int
	// Duration is the time that the search took.
	Duration time.Duration
}

// DeleteFlows lists all entries of an IP family and an IP protocol once, and deletes the entries for which stale
// returns true. If the kernel refuses to delete an entry (EBUSY while it is offloaded to a flowtable), the others are
// deleted nevertheless, and the error wraps the first refusal. When ctx ends, the search ends with ctx's error.
//
// A kernel before 5.8 lists the whole family, of which DeleteFlows ignores the other entries.
func (c *Conn) DeleteFlows(ctx context.Context, family model.Family, protocol uint8, stale func(Flow) bool) (stats Stats, err error) {
	return c.delete(ctx, family, protocol, 0, stale)
}

// DeleteUntranslated is DeleteFlows for untranslated, unanswered entries, such as a TCP connection whose first packet
// came while there were no rules. A kernel before 5.15 lists all entries.
func (c *Conn) DeleteUntranslated(ctx context.Context, family model.Family, protocol uint8, stale func(Flow) bool) (Stats, error) {
	return c.delete(ctx, family, protocol, statusSeenReply|statusDstNAT, stale)
}

func (c *Conn) delete(ctx context.Context, family model.Family, protocol uint8, without uint32, stale func(Flow) bool) (stats Stats, err error) {
	begin := time.Now()
	d := deletion{conn: c, ctx: ctx, family: family}
	stats.Listed, err = c.each(ctx, Query{Family: family, Protocol: protocol}, without, func(e entry) bool {
		return !stale(e.flow) || d.add(e.name())
	})
	err = errors.Join(err, d.finish())
	stats.Deleted, stats.Refused, stats.Duration = d.deleted, d.refused, time.Since(begin)
	if ctx.Err() != nil {
		return stats, ctx.Err()
	}
	return stats, err
}

// Each calls do with all entries of an IP family and an IP protocol. When ctx ends, it returns ctx's error.
func (c *Conn) Each(ctx context.Context, family model.Family, protocol uint8, do func(Flow)) error {
	return c.Entries(ctx, Query{Family: family, Protocol: protocol}, func(e Entry) { do(e.Flow) })
}

// Query selects entries of an IP family and an IP protocol.
type Query struct {
	Family   model.Family
	Protocol uint8
	// Dialed selects by Flow.Dialed: an invalid address stands for all addresses, port 0 for all ports.
	Dialed netip.AddrPort
}

func (q *Query) selects(f *Flow) bool {
	addr, port := q.Dialed.Addr(), q.Dialed.Port()
	return f.Protocol == q.Protocol && (!addr.IsValid() || addr == f.Dialed.Addr()) &&
		(port == 0 || port == f.Dialed.Port())
}

// Entries calls do with each entry that the query selects, in the kernel's order: arbitrary, and perhaps an entry twice
// while flows come and go. The kernel filters the entries; before 5.8 it sends the whole family, and Entries filters.
// When ctx ends, it returns ctx's error.
func (c *Conn) Entries(ctx context.Context, q Query, do func(Entry)) error {
	_, err := c.each(ctx, q, 0, func(e entry) bool {
		do(e.entry())
		return ctx.Err() == nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// each lists entries that have none of the status bits without, as long as do returns true. It returns the number of
// listed entries.
func (c *Conn) each(ctx context.Context, q Query, without uint32, do func(entry) bool) (listed int, err error) {
	s, err := c.open(0)
	if err != nil {
		return 0, err
	}
	defer s.nl.Close() // closing twice is harmless
	defer context.AfterFunc(ctx, func() { s.nl.Close() })()
	if err := s.list(listRequest(q, without), func(e entry) bool {
		listed++
		return !q.selects(&e.flow) || e.status&without != 0 || do(e)
	}); err != nil {
		return listed, fmt.Errorf("conntrack: list %s entries: %w", q.Family, err)
	}
	return listed, nil
}

// socket is a netlink socket for one search.
type socket struct {
	nl      *netlink.Conn
	timeout time.Duration
}

// datagramSize is the size of the kernel's datagrams in a listing, if the reader's buffer has room.
const datagramSize = 1 << 15

// open opens a socket that subscribes to the multicast groups, a mask of bits; 0 for none.
func (c *Conn) open(groups uint32) (*socket, error) {
	nl, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{
		NetNS: c.netNS, MessageBufferSize: datagramSize, Groups: groups,
	})
	if err != nil {
		return nil, fmt.Errorf("conntrack: open netlink socket: %w", err)
	}
	return &socket{nl, c.timeout}, nil
}

// expect sets the deadline for one more datagram.
func (s *socket) expect() error { return s.nl.SetReadDeadline(time.Now().Add(s.timeout)) }

// deadlineEvery is the number of entries after which the deadline moves. A datagram has more.
const deadlineEvery = 64

// list sends a request and calls do with each entry of the answer as it arrives, as long as do returns true.
func (s *socket) list(request netlink.Message, do func(entry) bool) error {
	if err := s.expect(); err != nil {
		return err
	}
	if _, err := s.nl.Send(request); err != nil {
		return err
	}
	n := 0
	for m, err := range s.nl.ReceiveIter() {
		goOn := false
		if err == nil {
			var e entry
			e, err = decodeEntry(m.Data)
			goOn = err == nil && do(e)
		}
		if n++; goOn && n%deadlineEvery == 0 {
			err = s.expect()
		}
		if !goOn || err != nil {
			s.nl.Close() // otherwise the iterator reads the rest of the listing
			return err
		}
	}
	return nil
}
