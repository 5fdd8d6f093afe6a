package verb

import (
	"context"
	"net/netip"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
)

// report compares a packet with explain, and tells of it. If they disagree and somebody has committed since the rules
// were read, it reads them again.
func (t *tracing) report(ctx context.Context, p *underway) error {
	out, err := t.compare(p)
	if err == nil && out.Agrees != nil && !*out.Agrees {
		var fresh *ruledump.Snapshot
		if fresh, err = rereadKernel(ctx, t.conn, t.rules); err == nil && fresh != t.rules {
			if err = t.use(fresh); err == nil {
				out, err = t.compare(p)
			}
		}
	}
	if err != nil {
		return err
	}
	t.told++
	return t.tell(out)
}

// The reasons that only real packets have.
const (
	ReasonEstablished Reason = "established" // a later packet of a connection, which conntrack translates as the first
	ReasonKernel      Reason = "kernel"      // no rule decided: the packet did not come to the next hook
)

// compare finds out which of the fates that explain expects is the packet's.
func (t *tracing) compare(p *underway) (*tracedPacket, error) {
	packet := p.packet()
	out := &tracedPacket{document: documentOf("Trace"), Time: p.begun.UTC(), Packet: packet.String()}
	w := t.way(p)
	e := &Explanation{nodeDocument: aboutNode("Trace", t.rules), packet: packet, rules: t.rules}
	e.findFrontends(t.frontends)
	var expected evaluator.Fates
	for i, candidate := range t.candidates(e, p) {
		fates, err := candidate()
		if err != nil {
			out.Expected = []string{err.Error()}
			break
		}
		if expected == nil {
			expected = fates
		}
		for _, fate := range fates {
			if w.is(&fate, p) {
				fate.Path = w.merge(fate.Path)
				if w.stopped {
					fate.Result = evaluator.Dropped
				}
				e.add(&evaluator.Outcome{Fate: fate, Destinations: []netip.AddrPort{fate.Destination}})
				agrees := true
				out.Outcome, out.ServicePort, out.Agrees = &e.Outcomes[0], e.ServicePort, &agrees
				if i == established || i == masqueraded {
					o := out.Outcome
					o.Reason, o.Source, o.SourceReason = ReasonEstablished, "", ""
					o.Why = "conntrack: the connection is established, so NAT chains do not see the packet"
				}
				w.blame(out.Outcome)
				return out, nil
			}
		}
	}
	// Without an expected fate, the trace alone has the result.
	fate := evaluator.Fate{Result: w.result, Destination: p.latest.Destination, Path: w.path}
	e.add(&evaluator.Outcome{Fate: fate, Destinations: []netip.AddrPort{fate.Destination}})
	o := &e.Outcomes[0]
	out.Outcome, out.ServicePort = o, e.ServicePort
	if o.Reason = ReasonOther; w.result == evaluator.Delivered {
		o.Source, o.Why = "", "explain expects another way"
	}
	if w.unfinished() {
		o.Reason, o.Result, o.head = ReasonKernel, "dropped", "dropped before the next hook"
		o.Why = "no rule dropped it: the kernel did (no route, rp_filter, conntrack), unless a program holds it in a queue"
	}
	switch {
	case t.lost:
		out.Expected = []string{"steps were lost"}
	case out.Expected == nil:
		agrees := false
		out.Agrees = &agrees
		for _, o := range expected.Outcomes() {
			out.Expected = append(out.Expected, o.Head(explainShown))
		}
	}
	w.blame(o)
	return out, nil
}

// unfinished reports whether the last step is at a hook from which a packet goes on to another.
func (w *way) unfinished() bool {
	var last nft.Hook
	for _, s := range w.path {
		if s.Table.Family.Routes() {
			last = s.Hook
		}
	}
	if last == "" {
		return true
	}
	return w.result == evaluator.Delivered && (last == nft.HookPrerouting || last == nft.HookOutput)
}

// The candidates of a connection that conntrack knows.
const (
	established = 1
	masqueraded = 2
)

// candidates are the fates that explain expects of the packet: with and without the clients that the kernel
// has in maps of session affinity now, because the packet may have been the one that added its client; and of
// a connection that conntrack knows already.
func (t *tracing) candidates(e *Explanation, p *underway) []func() (evaluator.Fates, error) {
	walk := func(c *evaluator.Connection) (evaluator.Fates, error) {
		packet := e.packet
		packet.Connection = c
		return t.evaluator.Fates(packet)
	}
	return []func() (evaluator.Fates, error){
		func() (evaluator.Fates, error) { t.forgetClients(e); return walk(nil) },
		func() (evaluator.Fates, error) {
			return walk(&evaluator.Connection{Destination: p.latest.Destination})
		},
		func() (evaluator.Fates, error) {
			return walk(&evaluator.Connection{Destination: p.latest.Destination, Masqueraded: true})
		},
		func() (evaluator.Fates, error) {
			for _, f := range e.frontends() {
				if err := e.readAffinity(t.rules, f); err != nil {
					return nil, err
				}
			}
			return walk(nil)
		},
	}
}

// forgetClients empties the maps of session affinity of the packet's frontends.
func (t *tracing) forgetClients(e *Explanation) {
	for _, f := range e.frontends() {
		for _, name := range f.AffinityMaps {
			if set := t.rules.Table(f.Family).Set(name); set != nil {
				for _, client := range set.Elements() {
					set.Remove(client.Key)
				}
			}
		}
	}
}
