package flows

import (
	"fmt"
	"net/netip"
	"slices"

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
