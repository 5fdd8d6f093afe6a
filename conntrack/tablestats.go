package conntrack

import (
	"context"
	"fmt"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
)

// Message types and attributes of linux/netfilter/nfnetlink_conntrack.h.
const (
	msgGetStatsCPU = 4
	msgGetStats    = 5

	ctaStatsInsertFailed = 9
	ctaStatsDrop         = 10
	ctaStatsEarlyDrop    = 11

	ctaStatsGlobalEntries = 1
	ctaStatsGlobalLimit   = 2 // since Linux 4.18
)

// TableStats holds the size and the counters of the connection tracking table of a network namespace. The kernel counts
// with 32 bits on each processor, since the namespace was made.
type TableStats struct {
	// Entries is the number of entries; Limit is the sysctl net.netfilter.nf_conntrack_max, 0 for no limit.
	Entries, Limit uint64
	// InsertFailed counts packets that were dropped because their entry collided with another: two packets of one
	// flow at the same time, or a source port that is taken after translation.
	InsertFailed uint64
	// Drop counts packets that were dropped because the table was full, or had no memory.
	Drop uint64
	// EarlyDrop counts entries that were removed before their time, to make room in a full table.
	EarlyDrop uint64
}

// TableStats asks the kernel for the size and the counters of the table. It lists no entries, so it takes as long for a
// large table as for a small one. When ctx ends, it returns ctx's error.
func (c *Conn) TableStats(ctx context.Context) (stats TableStats, err error) {
	for _, of := range []struct {
		message uint16
		flags   netlink.HeaderFlags
		fields  map[uint16]*uint64
	}{
		{msgGetStats, 0, map[uint16]*uint64{ctaStatsGlobalEntries: &stats.Entries, ctaStatsGlobalLimit: &stats.Limit}},
		{msgGetStatsCPU, netlink.Dump, map[uint16]*uint64{
			ctaStatsInsertFailed: &stats.InsertFailed, ctaStatsDrop: &stats.Drop, ctaStatsEarlyDrop: &stats.EarlyDrop,
		}},
	} {
		if err := c.sum(ctx, of.message, of.flags, of.fields); ctx.Err() != nil {
			return stats, ctx.Err()
		} else if err != nil {
			return stats, fmt.Errorf("conntrack: read the table's counters: %w", err)
		}
	}
	return stats, nil
}

// sum adds the attributes of each answer to a request to the fields. The kernel answers a dump once for each processor,
// and any other request once, in a message that says that there are more.
func (c *Conn) sum(ctx context.Context, message uint16, flags netlink.HeaderFlags, fields map[uint16]*uint64) error {
	s, err := c.open(0)
	if err != nil {
		return err
	}
	defer s.nl.Close() // closing twice is harmless
	defer context.AfterFunc(ctx, func() { s.nl.Close() })()
	if err := s.expect(); err != nil {
		return err
	}
	if _, err := s.nl.Send(request(message, flags, 0, nil)); err != nil {
		return err
	}
	for answer, err := range s.nl.ReceiveIter() {
		if err != nil {
			return err
		}
		if err := netlinkattr.Each(answer.Data[min(headerLen, len(answer.Data)):], func(typ uint16, payload []byte) error {
			field := fields[typ]
			if field == nil {
				return nil
			}
			n, err := netlinkattr.Uint32(payload)
			*field += uint64(n)
			return err
		}); err != nil {
			return fmt.Errorf("%w: %w", errMalformed, err)
		}
		if flags&netlink.Dump == 0 {
			return s.nl.Close() // otherwise the iterator waits for more
		}
	}
	return nil
}
