package nft

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// MapAddrs returns a copy of the recording in which f has replaced the IP addresses of elements and rules. Of a prefix
// f gets the first address, and the first bits of what it returns count. A rule or a set of which the package does not
// know whether it has addresses is an error.
func (r Recording) MapAddrs(f func(netip.Addr) netip.Addr) (Recording, error) {
	t, err := r.Table()
	if err != nil {
		return nil, err
	}
	m, out := addrMapper{t, f}, slices.Clone(r)
	return out, out.each(func(message reply) error {
		switch message.kind() {
		case unix.NFT_MSG_NEWSETELEM:
			return m.elements(message.Data)
		case unix.NFT_MSG_NEWRULE:
			return m.rule(message.Data)
		}
		return nil
	})
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
	at := 0
	for _, e := range of {
		o := operand{typ: e.dataType()}
		end := at + o.typ.length
		switch {
		case !o.isAddress() || end > len(from):
		case end > len(to):
			m.replace(from[at:end], o.typ.length, 8*o.typ.length)
		default:
			if err := m.span(from[at:end], to[at:end]); err != nil {
				return err
			}
		}
		at += netlinkattr.Padded(o.typ.length)
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
	m.replace(from, len(from), ones)
	for i := range to {
		to[i] = from[i] | ^inverse[i]
	}
	return nil
}

// replace replaces an address of which b has the first bytes, and of which bits count.
func (m *addrMapper) replace(b []byte, length, bits int) {
	whole := make([]byte, length)
	copy(whole, b)
	addr, _ := netip.AddrFromSlice(whole) // its length is that of an address
	prefix, err := m.f(addr).Prefix(min(bits, 8*len(b)))
	if err == nil {
		copy(b, prefix.Addr().AsSlice())
	}
}

func (m *addrMapper) rule(data []byte) error {
	p := printer{Expressions: Expressions{family: m.table.Family, sets: m.table.index().sets}, regs: map[int]operand{}}
	immediates := map[int][]byte{}
	return netlinkattr.Each(netlinkattr.Find(data[nfgenmsgLen:], unix.NFTA_RULE_EXPRESSIONS), func(_ uint16, b []byte) error {
		value := func(attribute uint16) []byte {
			return netlinkattr.Find(netlinkattr.Find(netlinkattr.Find(b, unix.NFTA_EXPR_DATA), attribute), unix.NFTA_DATA_VALUE)
		}
		decoded := decodeExpr(m.table.Family, b)
		switch x := decoded.(type) {
		case *expr.Cmp:
			if o := p.regs[registerIndex(x.Register)]; o.isAddress() {
				data, bits := value(unix.NFTA_CMP_DATA), 8*o.typ.length
				if o.mask != nil {
					bits, _ = net.IPMask(o.mask).Size()
				}
				m.replace(data, o.typ.length, bits)
			}
		case *expr.Immediate:
			immediates[registerIndex(x.Register)] = value(unix.NFTA_IMMEDIATE_DATA)
		case *expr.NAT:
			for _, register := range []uint32{x.RegAddrMin, x.RegAddrMax} {
				if data := immediates[registerIndex(register)]; register != 0 && (len(data) == 4 || len(data) == 16) {
					m.replace(data, len(data), 8*len(data))
					delete(immediates, registerIndex(register)) // both may be one register
				}
			}
		case *expr.Range, *expr.Match, *expr.Target, Unknown:
			return fmt.Errorf("it is not known whether a rule has addresses: %s", Expressions{
				family: m.table.Family, encoded: string(netlinkattr.Find(data[nfgenmsgLen:], unix.NFTA_RULE_EXPRESSIONS)),
			})
		}
		p.print(decoded)
		return nil
	})
}
