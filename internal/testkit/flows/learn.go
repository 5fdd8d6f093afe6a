package flows

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Learned is a flow as Learn saw it.
type Learned struct {
	// Flow expects what was seen.
	Flow Flow
	// Strange, if set, says what was seen that no expectation covers; Flow then expects nothing.
	Strange string
}

// Learn sends each flow many times and returns it with the expectation that it has met: all
// endpoints that it reached, and what they saw, or its result. A connection that gets no answer for
// patience gets none. Expectations are not sticky.
func (r *Runner) Learn(flows []Flow, patience time.Duration) []Learned {
	learned := make([]Learned, len(flows))
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, flow := range flows {
		slots <- struct{}{}
		all.Go(func() {
			learned[i] = r.learn(flow, patience)
			<-slots
		})
	}
	all.Wait()
	return learned
}

func (r *Runner) learn(flow Flow, patience time.Duration) Learned {
	flow.Expect = Expectation{}
	s, err := r.sender(flow)
	if err != nil {
		return Learned{Flow: flow, Strange: err.Error()}
	}
	if to := flow.To.Addr(); to.IsLoopback() || r.lab.HostOf(to) != nil {
		// Only somebody who listens can tell that a flow is untouched. If the proxy itself listens there, it is not.
		_ = s.await()
	}
	var expect Expectation
	var strange string
	err = s.host.Do(func() (err error) {
		if s.from, err = s.source(); err == nil {
			expect, strange = s.learn(patience)
		}
		return err
	})
	if err != nil {
		strange = err.Error()
	}
	if strange == "" {
		flow.Expect = expect
	}
	return Learned{flow, strange}
}

// silences is the number of connections without an answer that show that none comes.
const silences = 2

// learn connects until one more endpoint than it has seen would most probably have shown itself.
func (s *sender) learn(patience time.Duration) (e Expectation, strange string) {
	kept, masqueraded := false, false
	for i := 0; i < 8+8*(1+len(e.Endpoints)); i++ {
		o := s.attempt(patience)
		result := s.resultOf(o)
		switch {
		case result == "" && o.kind != answered:
			return e, o.String()
		case i > 0 && result != e.Result:
			return e, fmt.Sprintf("connection 1 %s and connection %d %s", e, i+1, o)
		}
		if e.Result = result; result == Dropped && i+1 == silences {
			return e, ""
		}
		if result != "" {
			continue
		}
		if !slices.Contains(e.Endpoints, o.answer.reached) {
			e.Endpoints = append(e.Endpoints, o.answer.reached)
		}
		isKept, isMasqueraded := s.sources(o)
		if !isKept && !isMasqueraded {
			return e, o.String()
		}
		kept, masqueraded = kept || !isMasqueraded, masqueraded || !isKept
	}
	slices.SortFunc(e.Endpoints, func(a, b netip.AddrPort) int { return a.Compare(b) })
	switch {
	case kept && !masqueraded:
		e.Source = Kept
	case masqueraded && !kept:
		e.Source = Masqueraded
	}
	return e, ""
}

// resultOf returns the result that an outcome meets, empty if it reached an endpoint, or if none covers it.
func (s *sender) resultOf(o outcome) Result {
	for _, result := range []Result{Refused, Dropped, Untouched} {
		s.flow.Expect = Expectation{Result: result}
		if s.judge(o) == "" {
			return result
		}
	}
	return ""
}

// sources reports which sources the judge takes for that of an answer. Both, if they cannot be told apart.
func (s *sender) sources(o outcome) (kept, masqueraded bool) {
	s.flow.Expect = Expectation{Source: Kept}
	kept = s.judgeSource(o.local.Addr(), o.answer) == ""
	s.flow.Expect = Expectation{Source: Masqueraded}
	return kept, s.judgeSource(o.local.Addr(), o.answer) == ""
}
