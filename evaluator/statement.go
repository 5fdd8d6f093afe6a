package evaluator

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// statements runs the statements of one rule.
type statements struct {
	*walk
	place
	rule *nft.Rule
	// elements are those that the rule found in or added to sets and maps, as nft prints them.
	elements []string
}

// run runs a statement. The rule ends if it does not match or has a verdict.
func (s *statements) run(statement nft.Statement) (matched bool, v nft.Verdict, err error) {
	switch x := statement.(type) {
	case nft.Match:
		matched, err = s.match(x)
	case nft.InSet:
		_, matched, err = s.lookup(x.Key, x.Set)
		matched = matched == (x.Op == nft.Equal)
	case nft.Vmap:
		return s.vmap(x)
	case nft.SetMark:
		matched, s.mark = true, (s.mark|x.Or)^x.Xor
	case nft.DNAT:
		return s.dnat(x)
	case nft.Dup:
		matched, err = s.dup(x)
	case nft.SetTTL:
		matched, s.hops = true, x.Hops
	case nft.Masquerade:
		return s.masqueradeHere()
	case nft.Update:
		matched, err = s.update(x)
	case nft.Delete:
		matched, err = true, s.deleteAdded(x)
	case nft.Reject:
		return s.reject(x)
	case nft.Counter:
		matched = true
	case nft.Expressions:
		return s.expressions(x, s.rule)
	case nft.Verdict:
		return true, x, validVerdict(x)
	default:
		err = errors.New("the evaluator does not model this statement")
	}
	return matched, nft.Verdict{}, err
}

func validVerdict(v nft.Verdict) error {
	if v.Kind < nft.VerdictAccept || v.Kind > nft.VerdictGoto {
		return errors.New("there is no such verdict")
	}
	return nil
}

// ctStatusKnown are the bits of ct status that the evaluator models.
const ctStatusKnown = ctStatusSNAT | nft.CTStatusDNAT

func (s *statements) match(m nft.Match) (bool, error) {
	value, err := s.known(m.Field)
	if err != nil {
		return false, err
	}
	// compared reports whether the field is compared with a value that has something in common with bits.
	compared := func(bits uint32) bool {
		same, err := nft.Match{Field: m.Field, Value: m.Value}.Compare(nft.IntegerData(bits))
		return same && err == nil
	}
	switch m.Field {
	case nft.FibSaddrType, nft.FibDaddrType:
		if !compared(unix.RTN_LOCAL) {
			return false, errors.New("the evaluator knows no address type but local")
		}
	case nft.CTStatus:
		if m.Op != nft.Equal || compared(^uint32(ctStatusKnown)) {
			return false, errors.New("the evaluator knows no ct status but snat and dnat")
		}
	}
	return m.Compare(value)
}

func (s *statements) vmap(m nft.Vmap) (bool, nft.Verdict, error) {
	e, found, err := s.lookup(m.Key, m.Map)
	if err != nil || !found {
		return false, nft.Verdict{}, err
	}
	return true, e.Verdict, validVerdict(e.Verdict)
}

// dnat translates the destination if the map has the key. Like every translation, that ends the base chain.
func (s *statements) dnat(d nft.DNAT) (bool, nft.Verdict, error) {
	if s.base.Type != nft.TypeNAT || translates(s.hook) != destination {
		return false, nft.Verdict{}, errors.New("dnat works in nat chains at prerouting and output only")
	}
	e, found, err := s.lookup(d.Key, d.Map)
	if err != nil || !found {
		return false, nft.Verdict{}, err
	}
	length := s.destination.Addr().BitLen() / 8
	addr, ok := netip.AddrFromSlice([]byte(e.Value[:min(length, len(e.Value))]))
	if !ok || addr.BitLen() != 8*length || len(e.Value) != length+4 || d.Family != s.family {
		return false, nft.Verdict{}, fmt.Errorf("%s does not map to an address and port of family %s", d.Map, s.family)
	}
	s.setDestination(netip.AddrPortFrom(addr, uint16(e.Value[length])<<8|uint16(e.Value[length+1])))
	return true, nft.Accept, nil
}

// dup sends a copy of the packet away, if the map has the key.
func (s *statements) dup(d nft.Dup) (bool, error) {
	e, found, err := s.lookup(d.Key, d.Map)
	if err != nil || !found {
		return false, err
	}
	addr, ok := netip.AddrFromSlice([]byte(e.Value))
	if !ok || addr.BitLen() != s.destination.Addr().BitLen() {
		return false, fmt.Errorf("%s does not map to an address of family %s", d.Map, s.family)
	}
	s.fate.CopyTo = addr
	return true, nil
}

func (s *statements) masqueradeHere() (bool, nft.Verdict, error) {
	if s.base.Type != nft.TypeNAT || s.hook != nft.HookPostrouting {
		return false, nft.Verdict{}, errors.New("masquerade works in nat chains at postrouting only")
	}
	s.masquerade()
	return true, nft.Accept, nil
}

func (s *statements) reject(r nft.Reject) (bool, nft.Verdict, error) {
	if s.hook == nft.HookPostrouting || s.base.Type != nft.TypeFilter {
		return false, nft.Verdict{}, errors.New("reject works in filter chains before postrouting only")
	}
	if r.Family != s.family {
		return false, nft.Verdict{}, fmt.Errorf("reject of family %s", r.Family)
	}
	s.fate.Result = Refused
	return true, nft.Drop, nil
}
