package verb

import (
	"cmp"
	"context"
	"errors"
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
	// lost says that messages of the kernel were lost meanwhile, perhaps about this packet.
	lost  bool
	steps []nft.Trace
}

// Limits of a trace.
const (
	// A packet is complete when no more steps came for so many ticks: at the end of its way, and before.
	quietTicks, patientTicks = 4, 40
	tick                     = 50 * time.Millisecond
	// maxTraceSteps bounds the memory for one packet.
	maxTraceSteps = 1000
)

// A listener gets what a follower finds.
type listener interface {
	// packet takes a packet of which no more steps come. errEnough ends the follower.
	packet(context.Context, *underway) error
	// lost says that messages of the kernel were lost.
	lost() error
	// tick is called now and then.
	tick(context.Context) error
}

// errEnough ends a follower without an error.
var errEnough = errors.New("no more packets are wanted")

// follower puts packets together from the steps that the kernel reports one by one, of all marked packets at once.
//
// A report has the number of its packet, which is made of the packet's place in memory. So the number is not enough: the
// kernel gives the memory of a packet that has ended to another one, br_netfilter copies packets (routing), and a packet
// that the node sends to itself comes back in by lo (returning). Chains of the marker's tables show where a packet begins
// and how far it has come. Nothing shows that the kernel has dropped a packet between two hooks, so a packet also ends
// when no more steps came for a time.
type follower struct {
	// table is the name of the marker's tables.
	table string
	to    listener
	// open are the packets on their way, oldest first, and ended those that are complete, but began after one of these.
	open, ended []*underway
	// ending says that no more packets are wanted than those on their way.
	ending bool
}

// run calls mark, and follows packets until ctx ends, until the listener has enough, or for the time of patience if it is
// not 0. Then it waits a moment for the packets that are on their way.
func (f *follower) run(ctx context.Context, conn *nft.Conn, patience time.Duration, mark func() error) error {
	tracer, err := conn.Trace()
	if err != nil {
		return err
	}
	defer tracer.Close()
	if err := mark(); err != nil {
		return err
	}
	if patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	done, end := ctx.Done(), (<-chan time.Time)(nil)
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	steps, failed := read(ctx, tracer)
	quiet := time.NewTicker(tick)
	defer quiet.Stop()
	for err == nil {
		select {
		case step := <-steps:
			err = f.take(ctx, step)
		case <-quiet.C:
			if len(steps) > 0 {
				continue // the steps of a packet that seems quiet may be among those that wait
			}
			err = cmp.Or(f.finish(ctx, func(p *underway) bool { p.ticks++; return p.isQuiet() }), f.to.tick(ctx))
		case err = <-failed:
		case <-done:
			done, end, f.ending = nil, time.After(quietTicks*tick), true
		case <-end:
			err = cmp.Or(f.finish(ctx, func(*underway) bool { return true }), errEnough)
		}
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// read reads steps until ctx ends or reading fails.
func read(ctx context.Context, tracer *nft.Tracer) (<-chan nft.Trace, <-chan error) {
	steps, failed := make(chan nft.Trace, 1024), make(chan error, 1)
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
	return steps, failed
}

// take takes a step of any packet that somebody traces.
func (f *follower) take(ctx context.Context, step nft.Trace) error {
	if step.Lost {
		for _, p := range f.open {
			p.lost = true
		}
		return f.to.lost()
	}
	if step.Table == f.table {
		return f.takeMark(ctx, step)
	}
	at := slices.IndexFunc(f.open, func(p *underway) bool { return p.id == step.ID })
	if at < 0 {
		return nil // another's
	}
	p := f.open[at]
	p.ticks = 0
	if step.Destination.IsValid() {
		p.latest = step
	}
	if (step.Handle != 0 || step.Verdict.Kind != 0) && len(p.steps) < maxTraceSteps {
		p.steps = append(p.steps, step)
	}
	if step.Verdict == nft.Drop {
		return f.finish(ctx, func(open *underway) bool { return open == p })
	}
	return nil
}

// isQuiet reports whether no more steps come. On a busy machine the kernel may pause on a packet's way.
func (p *underway) isQuiet() bool {
	return p.ticks > patientTicks || p.complete && p.ticks > quietTicks
}

// takeMark takes a step in the table that marks packets.
func (f *follower) takeMark(ctx context.Context, step nft.Trace) error {
	at := slices.IndexFunc(f.open, func(p *underway) bool { return p.id == step.ID })
	known := f.returning(step)
	switch {
	case known != nil:
		known.returned, known.prerouted, known.complete = true, false, false
	case step.Handle != 0: // a packet begins
	case begins(step):
		if known = f.routing(step); known != nil {
			known.routed, known.latest = true, step
		}
	case at >= 0:
		p := f.open[at]
		if p.ticks = 0; step.Destination.IsValid() {
			p.latest = step
		}
		p.prerouted = p.prerouted || step.Chain == chainPrerouted
		p.complete = p.complete || step.Chain == chainSent || step.Chain == chainReceived
		return nil
	default: // the end of a chain that has marked a packet
		return nil
	}
	// The packet before may have had the same memory, and so the same number.
	if err := f.finish(ctx, func(p *underway) bool { return p != known && p.id == step.ID }); err != nil {
		return err
	}
	switch {
	case known != nil:
		known.id, known.ticks = step.ID, 0
	case step.Handle != 0 && !f.ending:
		f.open = append(f.open, &underway{id: step.ID, begun: time.Now(), first: step, latest: step})
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
func (f *follower) routing(step nft.Trace) *underway {
	waits := func(p *underway) bool { return p.prerouted && !p.routed }
	if i := slices.IndexFunc(f.open, func(p *underway) bool { return waits(p) && p.id == step.ID }); i >= 0 {
		return f.open[i]
	}
	for _, p := range slices.Backward(f.open) {
		if waits(p) && p.first.In == step.In && p.first.Source == step.Source && p.first.Protocol == step.Protocol {
			return p
		}
	}
	return nil
}

// returning returns the packet that left by lo and comes back in with the step, the first of its flow; nil for none.
func (f *follower) returning(step nft.Trace) (back *underway) {
	const lo = 1
	if step.Chain != string(nft.HookPrerouting) || step.In != lo {
		return nil
	}
	for _, p := range f.open {
		same := p.first.In == 0 && !p.returned && p.latest.Destination == step.Destination && p.first.Protocol == step.Protocol
		if same && (back == nil || back.first.Source != step.Source && p.first.Source == step.Source) {
			back = p
		}
	}
	return back
}

// finish hands over the packets that are complete, in the order in which they began.
func (f *follower) finish(ctx context.Context, complete func(*underway) bool) error {
	f.open = slices.DeleteFunc(f.open, func(p *underway) bool {
		is := complete(p)
		if is {
			f.ended = append(f.ended, p)
		}
		return is
	})
	slices.SortStableFunc(f.ended, func(a, b *underway) int { return a.begun.Compare(b.begun) })
	for len(f.ended) > 0 && (len(f.open) == 0 || !f.ended[0].begun.After(f.open[0].begun)) {
		p := f.ended[0]
		f.ended = f.ended[1:]
		if err := f.to.packet(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// packet returns the packet as it came.
func (p *underway) packet() evaluator.Packet {
	packet := evaluator.Packet{Source: p.first.Source, Destination: p.first.Destination, Protocol: p.first.Protocol, Hops: p.first.Hops, Local: p.first.In == 0}
	if iface, err := net.InterfaceByIndex(int(p.first.In)); err == nil {
		packet.Interface = iface.Name
	}
	return packet
}
