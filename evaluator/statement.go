package evaluator

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// statements runs the statements of one rule.
type statements struct {
	*walk
	place
	rule *nft.Rule
	// elements are the elements that the rule found in or added to sets and maps, as nft prints them.
	elements []string
	// maps has what the rule found in maps.
	maps map[string]answer
}

// lenient reports whether a rule may depend on something unknown. It may if another program wrote it: then the walk follows
// both ways. In a rule of this proxy something unknown is an error.
func (p place) lenient() bool { return p.Kernel != nil && p.Kernel.Other || p.external }

// mark is a mark of a packet or of a connection.
type mark struct{ bits, unknown uint32 }

// result is the result of a statement.
type result struct {
	matches truth
	// why says why it is not known whether it matches.
	why     string
	verdict nft.Verdict
	// before happens even if the statement does not match.
	before func()
	// effect, if set, changes what later rules see, or the packet's fate.
	effect func() error
	// undecided says why the result of the rule is not known.
	undecided string
}

var goesOn = result{matches: yes}

// run runs a statement. The result of a statement without a case is not known.
func (s *statements) run(statement nft.Statement) result {
	switch x := statement.(type) {
	case nft.Match:
		return s.match(x)
	case nft.AnyOf:
		return s.anyOf(x)
	case nft.InSet:
		return s.inSet(x)
	case nft.Vmap:
		return s.vmap(x)
	case nft.Verdict:
		return decided(x)
	case nft.Assign:
		return s.assign(x)
	case nft.NAT:
		return s.nat(x)
	case nft.Dup:
		return s.dup(x)
	case nft.Update:
		return s.update(x)
	case nft.Delete:
		return s.delete(x)
	case nft.Reject:
		return s.reject(x)
	case nft.Notrack:
		return result{matches: yes, effect: func() error { s.untracked = s.untracked || !s.tracked; return nil }}
	case nft.Counter:
		return goesOn
	case nft.Limit:
		return result{matches: maybe, why: "the rate at which packets come is not known"}
	case nft.UseObject:
		return named(objects, x.Kind)
	case nft.Extension:
		return extension(x)
	case nft.Unknown:
		return named(expressions, x.Name)
	}
	return result{matches: yes, undecided: "the evaluator does not model this statement"}
}

// The results of objects, of expressions without a statement, and of targets of xtables, by their names: yes if the packet
// goes on unchanged, maybe if it goes on or not. Results of all other names are not known.
var (
	objects     = results{yes: {"counter", "ct helper", "ct timeout", "ct expectation", "secmark"}, maybe: {"quota", "limit"}}
	expressions = results{yes: {"log", "last", "flow_offload", "counter"}, maybe: {"limit", "quota", "connlimit", "socket", "osf", "rt", "xfrm", "exthdr", "bitwise", "hash", "numgen", "byteorder"}}
	ofTargets   = results{yes: {"LOG", "NFLOG", "TCPMSS", "CHECKSUM", "TRACE", "AUDIT", "SET", "CLASSIFY", "SECMARK", "CONNSECMARK", "TOS", "DSCP"}}
)

// extension runs an extension of xtables. Of the matches, socket alone can change the packet.
func extension(x nft.Extension) result {
	switch x.Name {
	case "rt", "frag", "hbh", "dst", "ah", "esp", "mh":
		return result{} // the packet has no such header
	case "socket":
		return result{matches: yes, undecided: "socket may set the mark"}
	}
	if x.Target {
		return named(ofTargets, x.Name)
	}
	return result{matches: maybe, why: "whether " + x.Name + " matches is not known"}
}

type results map[truth][]string

func named(in results, name string) result {
	for matches, names := range in {
		if slices.Contains(names, name) {
			return result{matches: matches, why: "whether " + name + " matches is not known"}
		}
	}
	return result{matches: yes, undecided: name + " is not modelled"}
}

func decided(v nft.Verdict) result {
	if v.Kind < nft.VerdictAccept || v.Kind > nft.VerdictGoto {
		return result{matches: yes, undecided: "there is no such verdict"}
	}
	return result{matches: yes, verdict: v}
}

func (s *statements) match(m nft.Match) result {
	c, err := m.Comparison()
	if err != nil {
		return result{matches: maybe, why: err.Error()}
	}
	v := s.value(m.Field)
	if v.absent {
		return result{}
	}
	if len(v.data) < len(c.First) {
		return result{matches: maybe, why: fmt.Sprintf("the value has %d bytes, and %d are compared", len(v.data), len(c.First))}
	}
	return result{matches: v.compare(c), why: v.why}
}

func (s *statements) anyOf(either nft.AnyOf) (best result) {
	for _, m := range either {
		if r := s.match(m); r.matches > best.matches {
			best = r
		}
	}
	return best
}

func (s *statements) inSet(m nft.InSet) result {
	a := s.lookUp(m.Key, m.Set)
	if a.err != nil {
		return result{matches: yes, undecided: a.err.Error()}
	}
	if m.Op == nft.NotEqual {
		a.found = yes - a.found
	}
	return result{matches: a.found, why: a.why}
}

func (s *statements) vmap(m nft.Vmap) result {
	a := s.lookUp(m.Key, m.Map)
	switch {
	case a.err != nil:
		return result{matches: yes, undecided: a.err.Error()}
	case a.found == no:
		return result{}
	case a.found == maybe && a.Verdict.Kind == 0:
		return result{matches: maybe, why: a.why, undecided: "what the map has for the packet is not known"}
	}
	r := decided(a.Verdict)
	r.matches, r.why = a.found, a.why
	return r
}

func (s *statements) setMark(to *mark, m mark) result {
	return result{matches: yes, effect: func() error { *to = m; return nil }}
}

func (s *statements) assign(a nft.Assign) result {
	v := s.value(a.Value)
	if v.absent {
		return result{}
	}
	to, isPayload := a.To.(nft.Payload)
	if f, is := a.To.(nft.Field); is {
		to, isPayload = f.Payload()
	}
	var m mark
	if len(v.data) >= 4 {
		m = mark{binary.NativeEndian.Uint32(v.data), ^binary.NativeEndian.Uint32(v.known)}
	}
	// A header begins with the version and the class of the traffic, in two bytes of IPv4 and, with the flow label, in four
	// bytes of IPv6.
	class := uint32(2)
	if s.walk.family == nft.FamilyIP6 {
		class = 4
	}
	switch {
	case a.To == nft.MetaMark:
		return s.setMark(&s.mark, m)
	case a.To == nft.CTMark:
		return s.setMark(&s.ctMark, m)
	case (a.To == nft.IPTTL || a.To == nft.IP6Hoplimit) && v.isKnown():
		return result{matches: yes, effect: func() error { s.hops, s.hopsSet = v.data[0], true; return nil }}
	case isPayload && to.Base == nft.NetworkHeader && uint64(to.Offset)+uint64(to.Length) <= uint64(class):
		return goesOn
	case isPayload:
		return result{matches: yes, undecided: "the rule changes the packet"}
	case a.To == nft.MetaPkttype || a.To == nft.CTZone:
		return result{matches: yes, undecided: "the rule changes the " + a.To.String()}
	}
	return goesOn // priority, labels, classes
}

// nat translates an end of the connection. A translation ends the base chain.
func (s *statements) nat(n nft.NAT) result {
	isDestination := n.Kind == nft.DestinationNAT || n.Kind == nft.RedirectNAT
	at := translates(s.hook)
	switch {
	case isDestination && at != destination, n.Kind == nft.DestinationNAT && s.base.Type != nft.TypeNAT:
		return result{matches: yes, undecided: "dnat works in nat chains at prerouting and output only"}
	case n.Kind == nft.MasqueradeNAT && (s.base.Type != nft.TypeNAT || s.hook != nft.HookPostrouting):
		return result{matches: yes, undecided: "masquerade works in nat chains at postrouting only"}
	case !isDestination && at != source:
		return result{matches: yes, undecided: "snat works in nat chains at input and postrouting only"}
	case n.Family != s.walk.family && (n.Family == nft.FamilyIP || n.Family == nft.FamilyIP6):
		return goesOn // of an inet table, for the other family
	case n.Kind == nft.MasqueradeNAT:
		return result{matches: yes, verdict: nft.Accept, effect: func() error { s.masquerade(); return nil }}
	case n.AddrEnd != nil || n.PortEnd != nil || n.Kind == nft.RedirectNAT && s.hook != nft.HookOutput || strings.Contains(n.Flags, "prefix"):
		return result{matches: yes, undecided: "what the rule translates to is not known"}
	}
	to, res := s.translated(n, isDestination)
	if res.matches != yes || res.undecided != "" {
		return res
	}
	res.verdict = nft.Accept
	res.effect = func() error {
		if isDestination {
			s.setDestination(to)
			return nil
		}
		s.walk.translated[source] = true
		if to.Addr() != s.source.Addr() || n.Port != nil {
			s.changed[source], s.source = true, netip.AddrPortFrom(to.Addr(), 0)
		}
		return nil
	}
	return res
}

// translated returns what a NAT translates an end of the packet to.
func (s *statements) translated(n nft.NAT, isDestination bool) (netip.AddrPort, result) {
	from := s.source
	if isDestination {
		from = s.walk.destination
	}
	length := s.walk.destination.Addr().BitLen() / 8
	addr, port := from.Addr(), from.Port()
	if n.Kind == nft.RedirectNAT { // of the node's own packets
		addr = netip.IPv6Loopback()
		if s.walk.family == nft.FamilyIP {
			addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
	}
	for _, part := range []struct {
		of     nft.Expr
		length int
		set    func(b []byte)
	}{
		{n.Addr, length, func(b []byte) { addr, _ = netip.AddrFromSlice(b) }},
		{n.Port, 2, func(b []byte) { port = binary.BigEndian.Uint16(b) }},
	} {
		if part.of == nil {
			continue
		}
		v := s.value(part.of)
		switch {
		case v.absent:
			return netip.AddrPort{}, result{}
		case !v.isKnown() || len(v.data) < part.length || n.Family != s.walk.family && n.Family != s.Family:
			why := v.why
			if m, is := part.of.(nft.Mapped); is && why == "" || n.Family != s.walk.family {
				why = fmt.Sprintf("%s does not map to an address and port of family %s", m.Map, s.walk.family)
			}
			return netip.AddrPort{}, result{matches: yes, undecided: why}
		}
		part.set(v.data[:part.length])
	}
	return netip.AddrPortFrom(addr, port), goesOn
}

func (s *statements) reject(r nft.Reject) result {
	switch {
	case s.hook == nft.HookPostrouting:
		return result{matches: yes, undecided: "reject does not work at postrouting"}
	case r.With == nft.TCPReset && s.packet.Protocol != unix.IPPROTO_TCP:
		return decided(nft.Drop)
	}
	return result{matches: yes, verdict: nft.Drop, effect: func() error { s.fate.Result = Refused; return nil }}
}

// dup sends a copy of the packet away, if the map has the key.
func (s *statements) dup(d nft.Dup) result {
	length := s.walk.destination.Addr().BitLen() / 8
	v := known(nft.Data(d.Addr))
	if d.Addr == "" {
		v = s.mapped(nft.Mapped{Key: d.Key, Map: d.Map, Length: length})
	}
	switch {
	case v.absent:
		return result{}
	case !v.isKnown() || len(v.data) != length:
		return result{matches: yes, undecided: v.why}
	}
	addr, _ := netip.AddrFromSlice(v.data) // of the family's length
	return result{matches: yes, effect: func() error { return s.sendCopy(addr) }}
}
