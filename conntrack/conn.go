package conntrack

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/model"
	"golang.org/x/sys/unix"
)

// Conn is a connection to the connection tracking table of one network namespace. It is not
// safe for concurrent use.
type Conn struct {
	netNS int
	// nl is nil after an error: what is left of an answer must not be taken for the next one.
	nl *netlink.Conn
}

// Dial opens a connection to the network namespace of the file descriptor, which must stay
// open as long as the connection, or, with 0, to the current one. Listing and deleting need
// CAP_NET_ADMIN.
func Dial(netNS int) (*Conn, error) {
	c := &Conn{netNS: netNS}
	return c, c.dial()
}

// datagramSize is the most that the kernel puts into one datagram of a listing, if whoever
// reads takes as much.
const datagramSize = 1 << 15

func (c *Conn) dial() (err error) {
	if c.nl != nil {
		return nil
	}
	c.nl, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: c.netNS, MessageBufferSize: datagramSize})
	if err != nil {
		return fmt.Errorf("conntrack: open netlink socket: %w", err)
	}
	return nil
}

// Close closes the connection.
func (c *Conn) Close() error {
	if c.nl == nil {
		return nil
	}
	err := c.nl.Close()
	c.nl = nil
	return err
}

// Stats is what a search for stale flows came to.
type Stats struct {
	// Listed is how many entries the kernel handed over, Deleted how many of them were deleted.
	Listed, Deleted int
	// Duration is how long the search took.
	Duration time.Duration
}

// DeleteFlows looks once at all entries of an IP family and an IP protocol, and deletes those
// that stale picks. Entries that end by themselves meanwhile are no error. An entry that
// cannot be deleted does not keep the others.
//
// The kernel leaves other protocols out since Linux 5.8. An older one lists the whole
// family, and they are passed over here.
func (c *Conn) DeleteFlows(family model.Family, protocol uint8, stale func(Flow) bool) (stats Stats, err error) {
	begin := time.Now()
	defer func() { stats.Duration = time.Since(begin) }()
	var names [][]byte
	stats.Listed, err = c.each(family, protocol, func(e entry) {
		if stale(e.flow) {
			names = append(names, e.name())
		}
	})
	if err != nil {
		return stats, err
	}
	if stats.Deleted, err = c.delete(family, names); err != nil {
		return stats, errors.Join(fmt.Errorf("conntrack: delete %s entries: %w", family, err), c.Close())
	}
	return stats, nil
}

// Each calls do with all entries of an IP family and an IP protocol.
func (c *Conn) Each(family model.Family, protocol uint8, do func(Flow)) error {
	_, err := c.each(family, protocol, func(e entry) { do(e.flow) })
	return err
}

// each returns how many entries the kernel handed over.
func (c *Conn) each(family model.Family, protocol uint8, do func(entry)) (listed int, err error) {
	if err := c.dial(); err != nil {
		return 0, err
	}
	if err := c.list(listRequest(family, protocol), func(e entry) {
		listed++
		if e.flow.Protocol == protocol {
			do(e)
		}
	}); err != nil {
		return listed, errors.Join(fmt.Errorf("conntrack: list %s entries: %w", family, err), c.Close())
	}
	return listed, nil
}

// answerTimeout is how long the kernel may take for one answer.
const answerTimeout = time.Minute

// list calls do with each entry that the kernel answers a request with, as they come in.
func (c *Conn) list(request netlink.Message, do func(entry)) error {
	if err := c.nl.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	if _, err := c.nl.Send(request); err != nil {
		return err
	}
	for m, err := range c.nl.ReceiveIter() {
		if err != nil {
			return err
		}
		e, err := decodeEntry(m.Data)
		if err != nil {
			return err
		}
		do(e)
	}
	return nil
}

// deleteAtOnce is how many entries the kernel is asked to delete at once. Its refusals of all
// of them must fit into the socket's buffer.
const deleteAtOnce = 100

// delete deletes the entries of those names, and returns how many of them there were.
func (c *Conn) delete(family model.Family, names [][]byte) (deleted int, err error) {
	var failures []error
	for some := range slices.Chunk(names, deleteAtOnce) {
		if err := c.nl.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
			return deleted, err
		}
		sent, err := c.nl.SendMessages(deleteRequests(family, some))
		if err != nil {
			return deleted, err
		}
		refused, err := c.refusals(sent[len(sent)-1].Header.Sequence)
		deleted += len(some) - refused
		failures = append(failures, err)
	}
	return deleted, errors.Join(failures...)
}

// refusals reads the kernel's answers up to the one for the last request, and returns how
// many requests it refused. That an entry does not exist is not an error.
func (c *Conn) refusals(last uint32) (refused int, err error) {
	var failures []error
	for {
		answers, err := c.nl.Receive()
		var refusal *netlink.OpError
		switch {
		case errors.As(err, &refusal) && refusal.Sequence != 0:
			refused++
			if !errors.Is(err, unix.ENOENT) {
				failures = append(failures, err)
			}
			if refusal.Sequence == last {
				return refused, errors.Join(failures...)
			}
		case err != nil:
			return refused, errors.Join(append(failures, err)...)
		}
		for _, m := range answers {
			if m.Header.Sequence == last {
				return refused, errors.Join(failures...)
			}
		}
	}
}
