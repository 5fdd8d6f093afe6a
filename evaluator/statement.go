package evaluator

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// statements runs the statements of one rule.
type statements struct {
	*walk
	place
	// elements are those that the rule found in or added to sets and maps, as nft prints them.
	elements []string
}

// run runs a statement. The rule ends if it does not match or has a verdict.
func (s *statements) run(statement nft.Statement) (matched bool, v verdict, err error) {
	switch x := statement.(type) {
	case nft.Match:
		matched, err = s.match(x)
	case nft.MatchPrefix:
		matched, err = s.matchPrefix(x)
	case nft.MatchFlags:
		matched, err = s.matchFlags(x)
	case nft.MatchMark:
		matched = s.mark&x.Bits == x.Bits
	case nft.MatchIfname:
		matched, err = s.matchIfname(x)
	case nft.InSet:
		_, matched, err = s.lookup(x.Key, x.Set)
		matched = matched == (x.Op == nft.Equal)
	case nft.Vmap:
		return s.vmap(x)
	case nft.SetMarkBits:
		matched, s.mark = true, s.mark|x.Bits
	case nft.FlipMarkBits:
		matched, s.mark = true, s.mark^x.Bits
	case nft.DNAT:
		return s.dnat(x)
	case nft.Masquerade:
		return s.masqueradeHere()
	case nft.Update:
		matched, err = s.update(x)
	case nft.Reject:
		return s.reject(x)
	case nft.Counter:
		matched = true
	case nft.Verdict:
		return true, verdict{Verdict: x}, validVerdict(x)
	default:
		err = errors.New("the evaluator does not model this statement")
	}
	return matched, verdict{}, err
}

func validVerdict(v nft.Verdict) error {
	if v.Kind < nft.VerdictAccept || v.Kind > nft.VerdictGoto {
		return errors.New("there is no such verdict")
	}
	return nil
}

func (s *statements) match(m nft.Match) (bool, error) {
	value, err := s.known(m.Field)
	if err != nil {
		return false, err
	}
	if len(value) != len(m.Value) {
		return false, fmt.Errorf("%s is compared with %d bytes, want %d", m.Field, len(m.Value), len(value))
	}
	if fib := m.Field == nft.FibSaddrType || m.Field == nft.FibDaddrType; fib && m.Value != nft.IntegerData(unix.RTN_LOCAL) {
		return false, errors.New("the evaluator knows no address type but local")
	}
	if m.Field == nft.CTStatus {
		return false, errors.New("the evaluator does not know all of ct status")
	}
	return (value == m.Value) == (m.Op == nft.Equal), nil
}

func (s *statements) matchPrefix(m nft.MatchPrefix) (bool, error) {
	value, err := s.known(m.Field)
	if err != nil {
		return false, err
	}
	addr, ok := netip.AddrFromSlice([]byte(value))
	if !ok || !m.Prefix.IsValid() || addr.BitLen() != m.Prefix.Addr().BitLen() {
		return false, fmt.Errorf("%s is compared with a prefix of another kind", m.Field)
	}
	return m.Prefix.Masked().Contains(addr) == (m.Op == nft.Equal), nil
}

// ctStatusKnown are the bits of ct status that the evaluator models.
const ctStatusKnown = ctStatusSNAT | nft.CTStatusDNAT

func (s *statements) matchFlags(m nft.MatchFlags) (bool, error) {
	value, err := s.known(m.Field)
	switch {
	case err != nil:
		return false, err
	case m.Field == nft.CTStatus && m.Bits&^ctStatusKnown != 0:
		return false, errors.New("the evaluator knows no ct status but snat and dnat")
	case m.Field != nft.CTStatus && m.Field != nft.CTState && m.Field != nft.MetaMark:
		return false, fmt.Errorf("%s has no flags", m.Field)
	}
	return integer(value)&m.Bits != 0, nil
}

func (s *statements) matchIfname(m nft.MatchIfname) (bool, error) {
	if m.Field != nft.MetaIifname && m.Field != nft.MetaOifname {
		return false, fmt.Errorf("%s is not the name of an interface", m.Field)
	}
	value, err := s.known(m.Field)
	if err != nil {
		return false, err
	}
	name := strings.TrimRight(string(value), "\x00")
	equal := name == m.Name
	if prefix, wildcard := strings.CutSuffix(m.Name, "*"); wildcard {
		equal = strings.HasPrefix(name, prefix)
	}
	return equal == (m.Op == nft.Equal), nil
}

func (s *statements) vmap(m nft.Vmap) (bool, verdict, error) {
	e, found, err := s.lookup(m.Key, m.Map)
	if err != nil || !found {
		return false, verdict{}, err
	}
	return true, verdict{Verdict: e.Verdict}, validVerdict(e.Verdict)
}

// dnat translates the destination if the map has the key. Like every translation, that ends the base chain.
func (s *statements) dnat(d nft.DNAT) (bool, verdict, error) {
	if s.base.Type != nft.TypeNAT || translates(s.hook) != destination {
		return false, verdict{}, errors.New("dnat works in nat chains at prerouting and output only")
	}
	e, found, err := s.lookup(d.Key, d.Map)
	if err != nil || !found {
		return false, verdict{}, err
	}
	length := s.destination.Addr().BitLen() / 8
	addr, ok := netip.AddrFromSlice([]byte(e.Value[:min(length, len(e.Value))]))
	if !ok || addr.BitLen() != 8*length || len(e.Value) != length+4 || d.Family != s.family {
		return false, verdict{}, fmt.Errorf("%s does not map to an address and port of family %s", d.Map, s.family)
	}
	s.setDestination(netip.AddrPortFrom(addr, uint16(e.Value[length])<<8|uint16(e.Value[length+1])))
	return true, verdict{Verdict: nft.Accept}, nil
}

func (s *statements) masqueradeHere() (bool, verdict, error) {
	if s.base.Type != nft.TypeNAT || s.hook != nft.HookPostrouting {
		return false, verdict{}, errors.New("masquerade works in nat chains at postrouting only")
	}
	s.masquerade()
	return true, verdict{Verdict: nft.Accept}, nil
}

func (s *statements) reject(r nft.Reject) (bool, verdict, error) {
	if s.hook == nft.HookPostrouting || s.base.Type != nft.TypeFilter {
		return false, verdict{}, errors.New("reject works in filter chains before postrouting only")
	}
	if r.Family != s.family {
		return false, verdict{}, fmt.Errorf("reject of family %s", r.Family)
	}
	return true, verdict{Verdict: nft.Drop, refused: true}, nil
}
