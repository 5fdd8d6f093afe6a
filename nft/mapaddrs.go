package nft

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// MapAddrs returns a copy of the recording in which f has replaced the IP addresses of elements and rules. For a prefix, f gets
// the first address, and the prefix of the same length around the returned address takes its place. A rule or a set that this
// package cannot search for addresses is an error.
func (r Recording) MapAddrs(f func(netip.Addr) netip.Addr) (Recording, error) {
	t, err := r.Table()
	if err != nil {
		return nil, err
	}
	m := addrMapper{t, f}
	var out Recording
	err = slices.Clone(r).each(func(message reply) (err error) {
		switch message.kind() {
		case unix.NFT_MSG_NEWSETELEM:
			err = m.elements(message.Data)
		case unix.NFT_MSG_NEWRULE:
			message.Data, err = m.rule(message.Data)
		}
		out.add(message.Header.Type, message.Data)
		return err
	})
	return out, err
}

// addrMapper replaces addresses in messages.
type addrMapper struct {
	table *Table
	f     func(netip.Addr) netip.Addr
}

func (m *addrMapper) elements(data []byte) error {
	s := m.table.Set(elementsOf(data))
	if s == nil || s.isOpaque() {
		return fmt.Errorf("it is not known whether set %s has addresses", elementsOf(data))
	}
	return eachElement(data, func(e *rawElement) error {
		if err := m.fields(s.Key, e.key, e.keyEnd); err != nil || s.Verdicts {
			return err
		}
		return m.fields(s.Data, e.value, nil)
	})
}

// fields replaces addresses in a key or a value. With to, they are the first and the last of a range.
func (m *addrMapper) fields(of Concat, from, to []byte) error {
	if len(to) < len(from) {
		to = from
	}
	at := 0
	for _, e := range of {
		end := at + e.dataType().length
		if isAddr(e) && end <= len(from) {
			if err := m.span(from[at:end], to[at:end]); err != nil {
				return err
			}
		}
		at += netlinkattr.Padded(e.dataType().length)
	}
	return nil
}

// span replaces the ends of a range, which has to be a prefix.
func (m *addrMapper) span(from, to []byte) error {
	inverse := make(net.IPMask, len(from)) // ones where the ends are alike
	for i := range from {
		inverse[i] = ^(from[i] ^ to[i])
	}
	ones, bits := inverse.Size()
	if bits == 0 {
		return errors.New("a range of addresses is no prefix")
	}
	first, _ := netip.AddrFromSlice(from) // its length is that of an address
	copy(from, m.prefix(netip.PrefixFrom(first, ones)).Addr().AsSlice())
	for i := range to {
		to[i] = from[i] | ^inverse[i]
	}
	return nil
}

// prefix returns the prefix that replaces p.
func (m *addrMapper) prefix(p netip.Prefix) netip.Prefix {
	if mapped, err := m.f(p.Addr()).Prefix(p.Bits()); err == nil {
		return mapped
	}
	return p
}

// addr returns the address that replaces one in a rule.
func (m *addrMapper) addr(d string) string {
	b := []byte(d)
	if first, ok := netip.AddrFromSlice(b); ok {
		copy(b, m.prefix(netip.PrefixFrom(first, first.BitLen())).Addr().AsSlice())
	}
	return string(b)
}

// isAddr reports whether an expression has the type of addresses.
func isAddr(e Expr) bool {
	name := e.dataType().name
	return name == typeIPv4.name || name == typeIPv6.name
}

// rule returns the message about a rule with other addresses.
func (m *addrMapper) rule(data []byte) ([]byte, error) {
	decoded, err := decodeRule(data)
	if err != nil {
		return nil, err
	}
	rule := delinearize(m.table.Family, m.table.Set, decoded.exprs)
	changed := false
	for i, s := range rule.Statements {
		mapped, known := m.statement(s)
		if !known {
			return nil, fmt.Errorf("it is not known whether a rule has addresses: %s", rule)
		}
		if changed = changed || mapped != nil; mapped != nil {
			rule.Statements[i] = mapped
		}
	}
	if !changed {
		return data, nil
	}
	exprs, err := rule.linearize()
	if err != nil {
		return nil, err
	}
	a := start(m.table.Family, m.table.Name, len(data))
	a.Text(unix.NFTA_RULE_CHAIN, decoded.chain)
	a.Uint64(unix.NFTA_RULE_HANDLE, decoded.handle)
	err = encodeExpressions(&a, m.table.Family, exprs)
	if userdata := netlinkattr.Find(data[nfgenmsgLen:], unix.NFTA_RULE_USERDATA); userdata != nil {
		a.Bytes(unix.NFTA_RULE_USERDATA, userdata)
	}
	return a, err
}

// statement returns a statement with other addresses; nil if it has none.
func (m *addrMapper) statement(s Statement) (mapped Statement, known bool) {
	switch s := s.(type) {
	case Match:
		if !isAddr(s.Field) {
			return nil, true
		}
		switch v := s.Value.(type) {
		case netip.Prefix:
			s.Value = m.prefix(v)
		case Data:
			s.Value = Data(m.addr(string(v)))
		default:
			return nil, false
		}
		return s, true
	case NAT:
		changed := false
		for _, end := range []*Expr{&s.Addr, &s.AddrEnd} {
			if c, is := (*end).(Constant); is {
				*end, changed = Constant(m.addr(string(c))), true
			}
		}
		if changed {
			return s, true
		}
		return nil, true
	case Dup:
		if s.Addr == "" {
			return nil, true
		}
		s.Addr = Constant(m.addr(string(s.Addr)))
		return s, true
	case Assign:
		f, is := s.To.(Field)
		return nil, is && !isAddr(f)
	case Unknown, Extension, AnyOf:
		return nil, false
	}
	return nil, true
}
