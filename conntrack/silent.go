package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/model"
)

// ErrLargeTable is the error of SilentServers for a table with more entries than it lists.
var ErrLargeTable = errors.New("the connection tracking table is too large to be listed")

// SilentServers returns a flow to each server to which at least least translated TCP connections wait for a first answer,
// and have waited since their last packet so long that the kernel keeps them for left at most. A connection to a server
// that answers waits for a round trip. It lists the TCP entries of both IP families once. If the table has more than most
// entries of all kinds, it lists none and returns ErrLargeTable.
func (c *Conn) SilentServers(ctx context.Context, left time.Duration, least int, most uint64) (silent []Flow, err error) {
	stats, err := c.TableStats(ctx)
	switch {
	case err != nil:
		return nil, err
	case stats.Entries > most:
		return nil, fmt.Errorf("%w: %d entries", ErrLargeTable, stats.Entries)
	}
	waiting := map[netip.AddrPort]int{}
	for _, family := range model.Families {
		// A kernel before 5.15 lists answered entries too.
		if _, err := c.each(ctx, Query{Family: family, Protocol: uint8(model.TCP)}, statusSeenReply, func(e entry) bool {
			if e.flow.Translated() && !e.flow.Finished() && e.details.Left <= left && len(waiting) < int(most) {
				if waiting[e.flow.Server]++; waiting[e.flow.Server] == least {
					silent = append(silent, e.flow)
				}
			}
			return ctx.Err() == nil
		}); ctx.Err() != nil {
			return nil, ctx.Err()
		} else if err != nil {
			return nil, err
		}
	}
	return silent, nil
}
