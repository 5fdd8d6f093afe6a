// Package conntrack removes entries from the kernel's connection tracking table, over
// netlink, without the conntrack program.
//
// A Service's address is translated when a flow's first packet arrives; for all later
// packets the kernel does what it remembers. A TCP client whose endpoint is gone gets a
// reset and dials anew. A UDP client may go on sending to where nobody answers for as long
// as it keeps the entry alive, so somebody has to remove it.
package conntrack

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"
)

// Flow is what matters of an entry: where its first packet went, and where answers come
// from. The two differ when the destination was translated.
type Flow struct {
	// Protocol is the IP protocol number.
	Protocol uint8
	// Source is who sent the first packet.
	Source netip.AddrPort
	// Dialed is the destination of the first packet as it was sent.
	Dialed netip.AddrPort
	// Server is who answers.
	Server netip.AddrPort
}

// Translated reports whether the destination was translated.
func (f Flow) Translated() bool { return f.Dialed != f.Server }

// Conn is a connection to the connection tracking table of one network namespace. It is not
// safe for concurrent use.
type Conn struct {
	ct *conntrack.Conn
}

// Dial opens a connection to the network namespace of the file descriptor, or, with 0, the
// current one. Deleting needs CAP_NET_ADMIN.
func Dial(netNS int) (*Conn, error) {
	ct, err := conntrack.Dial(&netlink.Config{NetNS: netNS})
	if err != nil {
		return nil, fmt.Errorf("conntrack: open netlink socket: %w", err)
	}
	return &Conn{ct: ct}, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.ct.Close() }

// DeleteFlows looks at all entries once and deletes those that stale picks. It returns how
// many it deleted. Entries that end by themselves meanwhile are no error. It goes
// on after an error, and returns all of them.
func (c *Conn) DeleteFlows(stale func(Flow) bool) (deleted int, err error) {
	var failures []error
	for _, family := range []netfilter.ProtoFamily{netfilter.ProtoIPv4, netfilter.ProtoIPv6} {
		entries, err := c.ct.DumpFilter(conntrack.NewFilter().Family(family), nil)
		if err != nil {
			failures = append(failures, fmt.Errorf("conntrack: list entries: %w", err))
			continue
		}
		for _, entry := range entries {
			flow := flowOf(entry)
			if !stale(flow) {
				continue
			}
			switch err := c.ct.Delete(entry); {
			case err == nil:
				deleted++
			case !errors.Is(err, unix.ENOENT):
				failures = append(failures, fmt.Errorf("conntrack: delete the entry from %s to %s: %w", flow.Source, flow.Dialed, err))
			}
		}
	}
	return deleted, errors.Join(failures...)
}

func flowOf(entry conntrack.Flow) Flow {
	orig, reply := entry.TupleOrig, entry.TupleReply
	return Flow{
		Protocol: orig.Proto.Protocol,
		Source:   netip.AddrPortFrom(orig.IP.SourceAddress, orig.Proto.SourcePort),
		Dialed:   netip.AddrPortFrom(orig.IP.DestinationAddress, orig.Proto.DestinationPort),
		Server:   netip.AddrPortFrom(reply.IP.SourceAddress, reply.Proto.SourcePort),
	}
}
