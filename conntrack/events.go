package conntrack

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Event tells of a flow that began or ended, or of events that were lost.
type Event struct {
	Entry
	// Ended says that the kernel has forgotten the flow; else it has seen the first packet.
	Ended bool
	// Lost says that events came faster than they were read, and some were lost. All other fields are zero then.
	Lost bool
}

// Follow calls do with each flow that begins or ends, of all families and protocols, until ctx ends or do returns an
// error. It returns that error, or ctx's. ready, if not nil, is called as soon as no later event is missed.
//
// The kernel makes no events where net.netfilter.nf_conntrack_events is 0. Where it is 2, the default, the end of a
// flow is told only if somebody already followed when the flow began.
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
