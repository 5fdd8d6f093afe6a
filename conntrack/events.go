package conntrack

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Event is the begin or the end of a flow, or a loss of events.
type Event struct {
	Entry
	// Ended says that the kernel has dropped the flow's entry; else it has seen the first packet.
	Ended bool
	// Lost says that events came faster than they were read, and some were lost. All other fields are then zero.
	Lost bool
}

// Follow calls do with each flow that begins or ends, of all families and protocols, until ctx ends or do returns an
// error. It returns that error, or ctx's. ready, if not nil, is called when the subscription is in place.
//
// With net.netfilter.nf_conntrack_events 0 the kernel sends no events. With 2, the default, it sends the end of a flow
// only if a subscriber existed when the flow began.
func (c *Conn) Follow(ctx context.Context, ready func(), do func(Event) error) error {
	s, err := c.open(groupNew | groupDestroy)
	if err != nil {
		return err
	}
	defer s.nl.Close() // closing twice is harmless
	defer context.AfterFunc(ctx, func() { s.nl.Close() })()
	if err := s.nl.SetReadBuffer(c.eventBuffer); err != nil {
		return fmt.Errorf("conntrack: make room for events: %w", err)
	}
	if ready != nil {
		ready()
	}
	for {
		messages, err := s.nl.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			if err := do(Event{Lost: true}); err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("conntrack: wait for events: %w", err)
		}
		for _, m := range messages {
			e, err := decodeEntry(m.Data)
			if err != nil {
				return fmt.Errorf("conntrack: read an event: %w", err)
			}
			if err := do(Event{Entry: e.entry(), Ended: uint16(m.Header.Type)&0xff == msgDelete}); err != nil {
				return err
			}
		}
	}
}
