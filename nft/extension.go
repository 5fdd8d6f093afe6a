package nft

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// Extension is a match or a target of xtables, as iptables-nft and iptables-legacy use them. A rule that was read has an
// Extension only if no other statements mean the same.
type Extension struct {
	// Target says that it is a target, not a match.
	Target bool
	// Name is the name of the extension, such as "hashlimit".
	Name     string
	Revision uint32
	// Info is the extension's structure.
	Info string
}

// String returns the statement as nft 1.0.6 lists it.
func (x Extension) String() string {
	if x.Target {
		return fmt.Sprintf("xt target %q", x.Name)
	}
	return fmt.Sprintf("xt match %q", x.Name)
}

func (x Extension) linearize(l *linearizer) {
	info := xt.Unknown(x.Info)
	if x.Target {
		l.add(&expr.Target{Name: x.Name, Rev: x.Revision, Info: &info})
		return
	}
	l.add(&expr.Match{Name: x.Name, Rev: x.Revision, Info: &info})
}

// Meaning returns the statements that mean the same in a table of the family, or the extension itself. A comment has no
// statements.
func (x Extension) Meaning(family Family) []Statement {
	if statements, _, known := x.meaning(family); known {
		return statements
	}
	return []Statement{x}
}

// structure reads the fields of a structure, in order. Fields beyond its end are zero.
type structure struct{ rest []byte }

func (s *structure) bytes(n int) []byte {
	b := make([]byte, n)
	s.rest = s.rest[copy(b, s.rest):]
	return b
}

func (s *structure) u8() uint8      { return s.bytes(1)[0] }
func (s *structure) u16() uint16    { return binary.NativeEndian.Uint16(s.bytes(2)) }
func (s *structure) u32() uint32    { return binary.NativeEndian.Uint32(s.bytes(4)) }
func (s *structure) data() Data     { return Data(s.bytes(4)) }
func (s *structure) port() Constant { return Constant(s.bytes(2)) }

// meaning returns the statements that mean the same. For the extension "comment" it returns no statements and the comment.
func (x Extension) meaning(family Family) (statements []Statement, comment string, known bool) {
	s := &structure{[]byte(x.Info)}
	if x.Target {
		statements = x.targetMeaning(family, s)
		return statements, "", statements != nil
	}
	switch key := fmt.Sprintf("%s.%d", x.Name, x.Revision); key {
	case "comment.0":
		return nil, cString(x.Info), true
	case "mark.1":
		statements = marked(MetaMark, s)
	case "connmark.1":
		statements = marked(CTMark, s)
	case "tcp.0", "udp.0":
		statements = tcpOrUDP(x.Name == "tcp", s)
	case "multiport.1":
		statements = multiport(s)
	case "state.0":
		statements = states(s.u32(), false)
	case "conntrack.1", "conntrack.2", "conntrack.3":
		statements = conntrack(family, x.Revision, s)
	case "iprange.1":
		statements = addressRanges(family, s)
	case "addrtype.0", "addrtype.1":
		statements = addressTypes(family, x.Revision, s)
	}
	return statements, "", statements != nil
}

func cString(b string) string {
	for i := range len(b) {
		if b[i] == 0 {
			return b[:i]
		}
	}
	return b
}

func operator(inverted bool) Op {
	if inverted {
		return NotEqual
	}
	return Equal
}

// marked reads struct xt_mark_mtinfo1 and xt_connmark_mtinfo1: mark, mask, inverted.
func marked(field Field, s *structure) []Statement {
	mark, mask := s.data(), s.data()
	op := operator(s.u8() != 0)
	if mask == "\xff\xff\xff\xff" {
		return []Statement{Match{Field: field, Op: op, Value: mark}}
	}
	return []Statement{Match{Field: Bits{Of: field, Mask: mask, Xor: IntegerData(0)}, Op: op, Value: Constant(mark)}}
}

// tcpOrUDP reads struct xt_tcp and xt_udp: source ports, destination ports; for TCP an option, a mask of flags, the flags that
// must be set; then which conditions are inverted.
func tcpOrUDP(isTCP bool, s *structure) []Statement {
	ports := [4]uint16{s.u16(), s.u16(), s.u16(), s.u16()}
	var option, mask, flags uint8
	if isTCP {
		option, mask, flags = s.u8(), s.u8(), s.u8()
	}
	inverted := s.u8()
	if option != 0 {
		return nil
	}
	statements := []Statement{}
	for i, field := range []Field{ThSport, ThDport} {
		if from, to := ports[2*i], ports[2*i+1]; from != 0 || to != 0xffff {
			statements = append(statements, portMatch(field, operator(inverted&(1<<i) != 0), from, to))
		}
	}
	if mask != 0 {
		bits := Bits{Of: TCPFlags, Mask: Data([]byte{mask}), Xor: "\x00"}
		statements = append(statements, Match{Field: bits, Op: operator(inverted&4 != 0), Value: Constant([]byte{flags})})
	}
	return statements
}

func portMatch(field Field, op Op, from, to uint16) Match {
	if from == to {
		return Match{Field: field, Op: op, Value: PortData(from)}
	}
	number := func(n uint16) Constant { return Constant(binary.BigEndian.AppendUint16(nil, n)) }
	return Match{Field: field, Op: op, Value: Range{First: number(from), Last: number(to)}}
}

// multiport reads struct xt_multiport_v1: which ports, count, 15 ports, 15 marks of ranges, inverted.
func multiport(s *structure) []Statement {
	which, count := s.u8(), int(min(s.u8(), 15))
	var ports [16]uint16
	for i := range 15 {
		ports[i] = s.u16()
	}
	isRange := s.bytes(15)
	inverted := s.u8() != 0
	fields := []Field{ThSport, ThDport}
	if int(which) < len(fields) {
		fields = fields[which : which+1]
	}
	var either AnyOf
	for i := 0; i < count; i++ {
		from, to := ports[i], ports[i]
		if isRange[i] != 0 {
			i++
			to = ports[i]
		}
		for _, f := range fields {
			either = append(either, portMatch(f, Equal, from, to))
		}
	}
	return anyOf(either, inverted)
}

// anyOf returns the statements that hold if one of the matches holds; inverted, if none holds.
func anyOf(either AnyOf, inverted bool) (statements []Statement) {
	switch {
	case inverted:
		for _, m := range either {
			m.Op = NotEqual - m.Op // Equal and NotEqual alone are inverted
			statements = append(statements, m)
		}
	case len(either) == 1:
		statements = []Statement{either[0]}
	case len(either) > 0:
		statements = []Statement{either}
	}
	return statements
}

// The bits of a mask of xtables that are no bits of ct state.
const (
	xtStateSNAT      = 1 << 6
	xtStateDNAT      = 1 << 7
	xtStateUntracked = 1 << 8
)

// states returns the statements that hold if a connection is in one of the states; inverted, if it is in none.
func states(mask uint32, inverted bool) []Statement {
	if inverted && mask&(xtStateSNAT|xtStateDNAT) != 0 {
		return nil // an inverted state holds for a packet without a connection, and a comparison of ct status does not
	}
	state := mask & 0xf
	if mask&xtStateUntracked != 0 {
		state |= CTStateUntracked
	}
	if inverted {
		none := Bits{Of: CTState, Mask: IntegerData(state), Xor: IntegerData(0)}
		return []Statement{Match{Field: none, Value: Constant(IntegerData(0))}}
	}
	var either AnyOf
	if state != 0 {
		either = append(either, Match{Field: CTState, Value: IntegerData(state)})
	}
	if status := mask & (xtStateSNAT | xtStateDNAT) >> 2; status != 0 { // snat is bit 4 of ct status, and dnat bit 5
		either = append(either, Match{Field: CTStatus, Value: IntegerData(status)})
	}
	return anyOf(either, false)
}

// conntrack reads struct xt_conntrack_mtinfo1 to 3, if the match compares the state, the status or addresses only.
func conntrack(family Family, revision uint32, s *structure) []Statement {
	const state, status, stateAlias = 1 << 0, 1 << 6, 1 << 13
	var addrs [8][]byte // each address, and its mask
	for i := range addrs {
		addrs[i] = s.bytes(16)[:byFamily(family, 4, 16)]
	}
	s.bytes(2*4 + 2 + 4*2) // times, protocol, ports
	flags, inverted := s.u16(), s.u16()
	tuple := []Field{
		byFamily(family, CTOriginalIPSaddr, CTOriginalIP6Saddr), family.OriginalDaddr(), byFamily(family, CTReplyIPSaddr, CTReplyIP6Saddr),
	}
	var statements []Statement
	for i, field := range tuple {
		if bit := uint16(1) << (2 + i); flags&bit != 0 {
			masked := Bits{Of: field, Mask: Data(addrs[2*i+1]), Xor: Data(make([]byte, len(addrs[2*i+1])))}
			statements = append(statements, Match{Field: masked, Op: operator(inverted&bit != 0), Value: Constant(addrs[2*i])})
			flags &^= bit
		}
	}
	if len(statements) > 0 {
		if flags != 0 {
			return nil
		}
		return statements
	}
	if flags&^(state|status|stateAlias) != 0 || flags&state != 0 && flags&status != 0 {
		return nil
	}
	stateMask, statusMask := s.u16(), s.u16()
	if revision == 1 {
		stateMask, statusMask = stateMask&0xff, stateMask>>8
	}
	statements = []Statement{}
	if flags&state != 0 {
		return states(uint32(stateMask), inverted&state != 0)
	}
	if flags&status != 0 {
		if inverted&status != 0 || statusMask == 0 {
			return nil
		}
		statements = append(statements, Match{Field: CTStatus, Value: IntegerData(uint32(statusMask))})
	}
	return statements
}

// addressRanges reads struct xt_iprange_mtinfo: the first and the last source, the same of destinations, flags.
func addressRanges(family Family, s *structure) []Statement {
	var ends [4]Constant
	for i := range ends {
		ends[i] = Constant(s.bytes(16)[:byFamily(family, 4, 16)])
	}
	flags := s.u8()
	statements := []Statement{}
	for i, field := range []Field{family.Saddr(), family.Daddr()} {
		if flags&(1<<i) != 0 {
			of := Range{First: ends[2*i], Last: ends[2*i+1]}
			statements = append(statements, Match{Field: field, Op: operator(flags&(1<<(4+i)) != 0), Value: of})
		}
	}
	return statements
}

// addressTypes reads struct xt_addrtype_info and xt_addrtype_info_v1: types of the source and of the destination, inverted.
func addressTypes(family Family, revision uint32, s *structure) []Statement {
	masks := [2]uint16{s.u16(), s.u16()}
	flags := s.u32()
	if revision == 0 && flags != 0 {
		flags = 1
	}
	if revision == 0 && s.u32() != 0 {
		flags |= 2
	}
	if flags&^3 != 0 {
		return nil // limited to an interface
	}
	statements := []Statement{}
	for i, field := range []Field{FibSaddrType, FibDaddrType} {
		if family == FamilyIP6 && masks[i]&^(1<<unix.RTN_LOCAL) != 0 {
			return nil // in IPv6 xtables decides on other types without the routes, and all types must match (net/netfilter/xt_addrtype.c)
		}
		either := AnyOf{}
		for typ := range uint32(12) {
			if masks[i]&(1<<typ) != 0 {
				either = append(either, Match{Field: field, Value: IntegerData(typ)})
			}
		}
		statements = append(statements, anyOf(either, flags&(1<<i) != 0)...)
	}
	return statements
}

// targetMeaning returns the statements that mean the same as a target; nil if there are none.
func (x Extension) targetMeaning(family Family, s *structure) []Statement {
	switch key := fmt.Sprintf("%s.%d", x.Name, x.Revision); key {
	case "MARK.2":
		mark, mask := s.data(), s.data()
		return []Statement{Assign{MetaMark, setBits(MetaMark, mark, mask)}}
	case "CONNMARK.1", "CONNMARK.2":
		return connmark(x.Revision, s)
	case "NOTRACK.0":
		return []Statement{Notrack{}}
	case "CT.0", "CT.1", "CT.2":
		const notrack = 1
		if s.u16()&notrack != 0 {
			return []Statement{Notrack{}}
		}
	case "TEE.0", "TEE.1":
		if gateway, device := s.bytes(16), s.bytes(16); cString(string(device)) == "" {
			return []Statement{Dup{Addr: Constant(gateway[:byFamily(family, 4, 16)])}}
		}
	case "REJECT.0":
		return []Statement{rejectTarget(family, s.u32())}
	}
	kind := map[string]NATKind{"DNAT": DestinationNAT, "SNAT": SourceNAT, "MASQUERADE": MasqueradeNAT, "REDIRECT": RedirectNAT}[x.Name]
	if kind == "" {
		return nil
	}
	if n, ok := natTarget(kind, family, len(x.Info) < 40, s); ok {
		return []Statement{n}
	}
	return nil
}

func setBits(field Field, value, mask Data) Expr {
	if mask == "\xff\xff\xff\xff" {
		return Constant(value)
	}
	keep := []byte(mask)
	for i := range keep {
		keep[i] = ^keep[i]
	}
	return Bits{Of: field, Mask: Data(keep), Xor: value}
}

// connmark reads struct xt_connmark_tginfo1 and 2: mark, masks, shift, mode.
func connmark(revision uint32, s *structure) []Statement {
	const set, save, restore = 0, 1, 2
	mark, ctMask, mask := s.data(), s.data(), s.data()
	all := ctMask == "\xff\xff\xff\xff" && mask == ctMask
	if revision == 2 {
		if shift := s.bytes(2); shift[1] != 0 {
			return nil
		}
	}
	switch mode := s.u8(); {
	case mode == set:
		return []Statement{Assign{CTMark, setBits(CTMark, mark, ctMask)}}
	case mode == save && all:
		return []Statement{Assign{CTMark, MetaMark}}
	case mode == restore && all:
		return []Statement{Assign{MetaMark, CTMark}}
	}
	return nil
}

// rejectTarget returns the Reject with the answer of a number (enum ipt_reject_with, enum ip6t_reject_with).
func rejectTarget(family Family, with uint32) Reject {
	port, reset := byFamily[uint32](family, 3, 4), byFamily[uint32](family, 7, 6)
	switch with {
	case port:
		return Reject{Family: family}
	case reset:
		return Reject{Family: family, With: TCPReset}
	}
	return Reject{Family: family, With: fmt.Sprintf("answer %d", with)}
}

// natTarget reads struct nf_nat_ipv4_multi_range_compat (short) and nf_nat_range.
func natTarget(kind NATKind, family Family, short bool, s *structure) (n NAT, ok bool) {
	const hasAddrs, hasPorts, random, persistent, fullyRandom = 1, 2, 4, 8, 16
	if short && s.u32() != 1 {
		return n, false
	}
	n = NAT{Kind: kind, Family: family}
	flags := s.u32()
	length := 16
	if short {
		length = 4
	}
	addrs := [2][]byte{s.bytes(length), s.bytes(length)}
	ports := [2]Constant{s.port(), s.port()}
	n.Flags = natFlags(flags&random != 0, flags&fullyRandom != 0, flags&persistent != 0)
	if flags&hasAddrs != 0 {
		n.Addr = Constant(addrs[0][:byFamily(family, 4, length)])
		if !slices.Equal(addrs[0], addrs[1]) {
			n.AddrEnd = Constant(addrs[1][:byFamily(family, 4, length)])
		}
	}
	if flags&hasPorts != 0 {
		n.Port = ports[0]
		if ports[1] != ports[0] {
			n.PortEnd = ports[1]
		}
	}
	return n, flags&^(hasAddrs|hasPorts|random|persistent|fullyRandom) == 0
}
