package verb

import (
	"context"
	"fmt"
	"slices"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/nft"
)

// way is a packet's path by its trace. It has what the kernel reports: rules that matched, and policies.
type way struct {
	path   evaluator.Path
	result evaluator.Result
	// own are the tables that explain walks.
	own []*nft.Table
	// stopped says that a rule of another program dropped the packet.
	stopped bool
}

// way finds chains and rules of a packet's steps.
func (c *comparer) way(p *underway) *way {
	w := &way{result: evaluator.Delivered, own: c.rules.Tables}
	levels := map[string]int{}
	var hook nft.Hook
	for i, step := range p.steps {
		s := evaluator.Step{Chain: &nft.Chain{Name: step.Chain}, Verdict: "continue"}
		if c.find(&s, step); s.Chain.Hook != "" {
			if hook = s.Chain.Hook; !s.Table.Family.Routes() {
				hook = nft.Hook(s.Table.Family.String() + " " + string(hook))
			}
		}
		if i == 0 || step.Destination.IsValid() {
			clear(levels)
		}
		s.Hook, s.Level, s.Decision = hook, levels[step.Chain], step.Verdict
		if step.Verdict.Chain != "" {
			levels[step.Verdict.Chain] = s.Level + 1
		}
		switch {
		case step.Handle == 0:
			s.Kind, s.Verdict = evaluator.StepPolicy, "policy "+step.Verdict.String()
		case step.Verdict.Kind != 0:
			s.Verdict = step.Verdict.String()
		}
		if s.Rule == nil && step.Handle != 0 {
			s.Verdict = fmt.Sprintf("rule with handle %d: %s", step.Handle, s.Verdict)
		}
		if step.Verdict == nft.Drop {
			w.result, w.stopped = evaluator.Dropped, !slices.Contains(w.own, s.Table)
			if s.Rule != nil && has(s.Rule, func(nft.Reject) bool { return true }) {
				w.result = evaluator.Refused
			}
		}
		w.path = append(w.path, s)
	}
	return w
}

// find puts the table, the chain and the rule of the step in place.
func (c *comparer) find(s *evaluator.Step, step nft.Trace) {
	s.Table = c.tableNamed(step.Family, step.Table)
	if chain := s.Table.Chain(step.Chain); chain != nil {
		s.Chain = chain
		if at := slices.Index(s.Table.Kernel.Handles[chain.Name], step.Handle); at >= 0 {
			s.Rule = &chain.Rules[at]
		}
	}
}

// tableNamed returns a table of the proxy or of another program. It reads the tables of other programs when a packet first
// comes through one that it does not know.
func (c *comparer) tableNamed(family nft.Family, name string) *nft.Table {
	known := func() *nft.Table {
		all := slices.Concat(c.rules.Tables, c.others)
		if i := slices.IndexFunc(all, func(t *nft.Table) bool { return t.Family == family && t.Name == name }); i >= 0 {
			return all[i]
		}
		return nil
	}
	if t := known(); t != nil {
		return t
	}
	// An error leaves the table without chains: its rules are named by their handles then.
	c.others, _ = c.conn.ReadOthers(context.Background(), c.rules.Tables...)
	if t := known(); t != nil {
		return t
	}
	t := &nft.Table{Family: family, Name: name, Kernel: &nft.KernelTable{}}
	c.others = append(c.others, t)
	return t
}

// is reports whether a fate is that of the traced packet: the same rules of the proxy's tables, and the same destination.
// If another program dropped the packet, the fate may go on where the trace ends. Then the destination is the same only
// if the packet had already been translated.
func (w *way) is(fate *evaluator.Fate, p *underway) bool {
	var rest []evaluator.Step
	for _, s := range fate.Path {
		if w.reported(&s) {
			rest = append(rest, s)
		}
	}
	for _, s := range w.path {
		if !slices.Contains(w.own, s.Table) {
			continue
		}
		if len(rest) == 0 || rest[0].Chain != s.Chain || rest[0].Rule != s.Rule {
			return false
		}
		rest = rest[1:]
	}
	if w.stopped {
		return fate.Destination == p.latest.Destination || p.latest.Destination == p.first.Destination
	}
	sameResult := fate.Result == w.result || fate.Failure != "" && w.unfinished()
	return len(rest) == 0 && sameResult && fate.Destination == p.latest.Destination
}

// reported reports whether the kernel reports a step of the evaluator's: a rule of the proxy's tables that matched, or a
// policy.
func (w *way) reported(s *evaluator.Step) bool {
	return (s.Kind == evaluator.StepRule || s.Kind == evaluator.StepPolicy) && slices.Contains(w.own, s.Table)
}

// merge puts the trace's steps in tables of other programs into the path of a fate that is the packet's. Both paths have
// the same steps in the proxy's tables. Between them, a step of another table goes behind the fate's decisions of the
// kernel that belong to earlier hooks.
func (w *way) merge(fate evaluator.Path) (out evaluator.Path) {
	// The trace knows better what other programs' tables did.
	fate = slices.DeleteFunc(slices.Clone(fate), func(s evaluator.Step) bool { return s.Table != nil && !slices.Contains(w.own, s.Table) })
	for _, s := range w.path {
		if !slices.Contains(w.own, s.Table) {
			for len(fate) > 0 && fate[0].Chain == nil && fate[0].Hook != s.Hook {
				out, fate = append(out, fate[0]), fate[1:]
			}
			out = append(out, s)
			continue
		}
		for done := false; !done; fate = fate[1:] {
			out, done = append(out, fate[0]), w.reported(&fate[0])
		}
	}
	if !w.stopped {
		out = append(out, fate...)
	}
	return out
}

// blame names the rule of another program that dropped the packet.
func (w *way) blame(o *Outcome) {
	if !w.stopped {
		return
	}
	last := w.path[len(w.path)-1]
	o.Reason, o.Why = ReasonOther, fmt.Sprintf("dropped by %s, chain %s (%s)", tableName(last.Table), last.Chain.Name, last.Verdict)
}
