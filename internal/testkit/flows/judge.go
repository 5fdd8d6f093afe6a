package flows

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// judge returns what an attempt should have come to instead, empty when all is well.
func (s *sender) judge(o outcome) string {
	switch s.flow.Expect.Result {
	case Refused:
		return unless(o.kind == refused, "want an ICMP port unreachable")
	case Dropped:
		return unless(o.kind == silent, "want silence")
	case Untouched:
		untouched := o.kind == answered && o.answer.reached == s.flow.To && o.answer.peer == o.local
		return unless(untouched, "want it to arrive at %s from %s", s.flow.To, s.from)
	}
	if o.kind != answered || !slices.Contains(s.flow.Expect.Endpoints, o.answer.reached) {
		return fmt.Sprintf("want one of %v", s.flow.Expect.Endpoints)
	}
	return s.judgeSource(o.local.Addr(), o.answer)
}

// judgeSource compares who sent with who the endpoint saw.
func (s *sender) judgeSource(local netip.Addr, a answer) string {
	source := s.flow.Expect.Source
	if a.reached.Addr() == local {
		// It would answer itself directly, from an address that it did not dial.
		source = Masqueraded
	}
	seen := a.peer.Addr()
	switch source {
	case Kept:
		return unless(seen == local, "want the source address kept, %s", local)
	case Masqueraded:
		byNode := isNode(seen) && !seen.IsLoopback()
		return unless(byNode && (seen != local || !s.tellsApart(local, a.reached.Addr())), "want the source address masqueraded")
	}
	return ""
}

// tellsApart reports whether masquerading changes the source address local on the way to
// endpoint. What the node itself sends has its address already, other than for its pods.
func (s *sender) tellsApart(local, endpoint netip.Addr) bool {
	if !isNode(local) {
		return true
	}
	l := s.runner.lab
	switch l.HostOf(endpoint) {
	case l.Node, l.Remote, l.Outside:
		return false
	}
	return local != lab.GatewayAddrs.Like(local)
}

func unless(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// soon bounds Observe's wait for an answer where none is expected. It is shorter than the wait for a flow of
// a file, since callers of Observe send very many.
const soon = 150 * time.Millisecond

// Observe makes one connection and returns the indexes of the expectations that it meets, and in
// words what became of it. It is for connections that may end in one of several ways. What
// flow expects itself does not matter, nor does Sticky, which takes more than one connection to tell.
func (r *Runner) Observe(flow Flow, expectations []Expectation) (met []int, became string, err error) {
	s, err := r.sender(flow)
	if err != nil {
		return nil, "", err
	}
	for _, e := range expectations {
		if e.Result == Untouched {
			if err := s.await(); err != nil {
				return nil, "", err
			}
		}
	}
	err = s.host.Do(func() error {
		if s.from, err = s.source(); err != nil {
			return err
		}
		o := s.attempt(patienceFor(expectations))
		became = o.String()
		for i, e := range expectations {
			s.flow.Expect = e
			if s.judge(o) == "" {
				met = append(met, i)
			}
		}
		return nil
	})
	return met, became, err
}

// patienceFor returns the bound of the wait for an answer: the shortest where silence alone is
// expected, a longer one where silence is among several expectations.
func patienceFor(expectations []Expectation) time.Duration {
	silences := 0
	for _, e := range expectations {
		if e.Result == Dropped {
			silences++
		}
	}
	switch silences {
	case 0:
		return patience
	case len(expectations):
		return soon
	}
	return ShortPatience
}
