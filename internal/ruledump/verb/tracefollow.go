package verb

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/nft"
)

// underway is a packet of which more steps may come.
type underway struct {
	id    uint32
	begun time.Time
	// ticks counts the ticks since the last step.
	ticks int
	// first and latest are the first steps in the first and in the last base chain, with the packet's headers.
	first, latest nft.Trace
	// returned says that the packet left by lo and came back in.
	returned bool
	// prerouted, routed and complete say that the packet has come to the end of prerouting, to forward or input, and to the
	// end of its way.
	prerouted, routed, complete bool
	steps                       []nft.Trace
}

// Limits of a trace.
const (
	// A packet is told when no more steps came for so many ticks: at the end of its way, and before.
	quietTicks, patientTicks = 4, 40
	tick                     = 50 * time.Millisecond
	// maxTraceSteps bounds the memory for one packet.
	maxTraceSteps = 1000
)

// run follows packets until ctx ends, until enough have come, or for the time of patience if it is not 0. It calls ready
// when packets are marked.
func (t *tracing) run(ctx context.Context, patience time.Duration, ready func()) error {
	tracer, err := t.conn.Trace()
	if err != nil {
		return err
	}
	defer tracer.Close()
	if t.owner, err = t.conn.Another(); err != nil {
		return err
	}
	defer t.owner.Close()
	var tx nft.Transaction
	for _, marks := range t.marks {
		tx.Append(nft.Diff(nil, marks))
	}
	if _, err := t.owner.Commit(ctx, tx); err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("a table that goes with its owner needs Linux 5.12: %w", err)
		}
		return err
	}
	t.rules.Generation++
	ready()
	if patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	steps, failed := make(chan nft.Trace, 1024), make(chan error, 1)
	done, end := ctx.Done(), (<-chan time.Time)(nil)
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		for {
			step, err := tracer.Next(ctx)
			if err != nil {
				failed <- err
				return
			}
			select {
			case steps <- step:
			case <-ctx.Done():
				return
			}
		}
	}()
	quiet := time.NewTicker(tick)
	defer quiet.Stop()
	for t.told < t.atMost {
		select {
		case step := <-steps:
			err = t.take(ctx, step)
		case <-quiet.C:
			if len(steps) > 0 {
				continue // the steps of a packet that seems quiet may be among those that wait
			}
			err = t.finish(ctx, func(p *underway) bool { p.ticks++; return p.isQuiet() })
			if err == nil && t.refresh != nil {
				err = t.refresh(ctx)
			}
		case err = <-failed:
		case <-done: // the rest of the packets that are on their way
			done, end, t.ending = nil, time.After(quietTicks*tick), true
		case <-end:
			return t.finish(ctx, func(*underway) bool { return true })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// take takes a step of any packet that somebody traces.
func (t *tracing) take(ctx context.Context, step nft.Trace) error {
	if step.Lost {
		t.lost = true
		return t.tell(&tracedPacket{document: documentOf("Trace"), Time: time.Now().UTC(), Lost: true})
	}
	if step.Table == t.table {
		return t.takeMark(ctx, step)
	}
	at := slices.IndexFunc(t.open, func(p *underway) bool { return p.id == step.ID })
	if at < 0 {
		return nil // another's
	}
	p := t.open[at]
	p.ticks = 0
	if step.Destination.IsValid() {
		p.latest = step
	}
	if (step.Handle != 0 || step.Verdict.Kind != 0) && len(p.steps) < maxTraceSteps {
		p.steps = append(p.steps, step)
	}
	if step.Verdict == nft.Drop {
		return t.finish(ctx, func(open *underway) bool { return open == p })
	}
	return nil
}

// isQuiet reports whether no more steps come. On a busy machine the kernel may pause on a packet's way.
func (p *underway) isQuiet() bool {
	return p.ticks > patientTicks || p.complete && p.ticks > quietTicks
}

// takeMark takes a step in the table that marks packets.
func (t *tracing) takeMark(ctx context.Context, step nft.Trace) error {
	at := slices.IndexFunc(t.open, func(p *underway) bool { return p.id == step.ID })
	known := t.returning(step)
	switch {
	case known != nil:
		known.returned, known.prerouted, known.complete = true, false, false
	case step.Handle != 0: // a packet begins
	case begins(step):
		if known = t.routing(step); known != nil {
			known.routed, known.latest = true, step
		}
	case at >= 0:
		p := t.open[at]
		p.ticks = 0
		p.prerouted = p.prerouted || step.Chain == chainPrerouted
		p.complete = p.complete || step.Chain == chainSent || step.Chain == chainReceived
		return nil
	default: // the end of a chain that has marked a packet
		return nil
	}
	// The packet before may have had the same memory, and so the same number.
	if err := t.finish(ctx, func(p *underway) bool { return p != known && p.id == step.ID }); err != nil {
		return err
	}
	switch {
	case known != nil:
		known.id, known.ticks = step.ID, 0
	case step.Handle != 0 && !t.ending:
		t.open = append(t.open, &underway{id: step.ID, begun: time.Now(), first: step, latest: step})
	}
	return nil
}

// begins reports whether a step is the first one at forward or input.
func begins(step nft.Trace) bool {
	return (step.Chain == chainForward || step.Chain == chainInput) && step.Destination.IsValid()
}

// routing returns the packet that comes to forward or input with the step; nil for none. If br_netfilter called
// prerouting while the packet was at the port of a bridge, it has another number from here on. Then it is the newest one
// of its flow that comes from there: older ones the kernel has dropped.
func (t *tracing) routing(step nft.Trace) *underway {
	waits := func(p *underway) bool { return p.prerouted && !p.routed }
	if i := slices.IndexFunc(t.open, func(p *underway) bool { return waits(p) && p.id == step.ID }); i >= 0 {
		return t.open[i]
	}
	for _, p := range slices.Backward(t.open) {
		if waits(p) && p.first.In == step.In && p.first.Source == step.Source && p.first.Protocol == step.Protocol {
			return p
		}
	}
	return nil
}

// returning returns the packet that left by lo and comes back in with the step, the first of its flow; nil for none.
func (t *tracing) returning(step nft.Trace) (back *underway) {
	const lo = 1
	if step.Chain != string(nft.HookPrerouting) || step.In != lo {
		return nil
	}
	for _, p := range t.open {
		same := p.first.In == 0 && !p.returned && p.latest.Destination == step.Destination && p.first.Protocol == step.Protocol
		if same && (back == nil || back.first.Source != step.Source && p.first.Source == step.Source) {
			back = p
		}
	}
	return back
}

// finish tells of the packets that are complete.
func (t *tracing) finish(ctx context.Context, complete func(*underway) bool) error {
	for i := 0; i < len(t.open) && t.told < t.atMost; {
		p := t.open[i]
		if !complete(p) {
			i++
			continue
		}
		t.open = slices.Delete(t.open, i, i+1)
		if err := t.complete(ctx, p); err != nil {
			return err
		}
	}
	t.lost = t.lost && len(t.open) > 0
	return nil
}

// packet returns the packet as it came.
func (p *underway) packet() evaluator.Packet {
	packet := evaluator.Packet{Source: p.first.Source, Destination: p.first.Destination, Protocol: p.first.Protocol, Local: p.first.In == 0}
	if iface, err := net.InterfaceByIndex(int(p.first.In)); err == nil {
		packet.Interface = iface.Name
	}
	return packet
}
