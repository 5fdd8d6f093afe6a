package evaluator

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

const (
	// maxBranches bounds the ways through one base chain of another program that are followed.
	maxBranches = 256
	// maxOrders is of how many tables with chains of one priority each is tried as the first one.
	maxOrders = 256
)

// others keeps what the walks of one packet have in common: the decoded rules of other programs, and the elements that
// the kernel found.
type others struct {
	rules map[*nft.Rule][]any
	found map[lookedUp]answer
	// ordered says of chains with one priority whether their order makes a difference.
	ordered map[arrival]bool
	// spent counts the statements and chains of all walks, also of those that only tell whether something matters.
	spent int
}

// spend reports whether the walks take longer than they may.
func (o *others) spend(statements int) bool {
	o.spent += statements
	return o.spent > maxAllStatements
}

// arrival is a packet before the chains of one priority, of which first is one. Devices may share chains, and a packet
// comes to those of more than one.
type arrival struct {
	first    *nft.Chain
	hook     nft.Hook
	iif, oif ifname
	state
}

// state holds the parts of a packet that rules change.
type state struct {
	source, destination netip.AddrPort
	mark, ctMark        uint32
	translated, changed [2]bool
}

func (w *walk) state() state {
	return state{w.source, w.destination, w.mark, w.ctMark, w.translated, w.changed}
}

type lookedUp struct {
	table *nft.Table
	set   string
	key   nft.Data
}

type answer struct {
	nft.Element
	ok  bool
	err error
}

// decoded returns the expressions of a rule.
func (o *others) decoded(r *nft.Rule, x nft.Expressions) []any {
	list, known := o.rules[r]
	if !known {
		list = x.List()
		o.rules[r] = list
	}
	return list
}

// lookUp asks the host, once for each key.
func (w *walk) lookUp(q lookedUp) answer {
	a, known := w.others.found[q]
	if !known {
		a.Element, a.ok, a.err = w.host.Lookup(q.table, q.set, q.key)
		w.others.found[q] = a
	}
	return a
}

// otherChain runs a base chain of another program. Where a rule asks for something unknown, the chain is run once for
// each answer. Ways that treat the packet alike count as one, and then the packet does not depend on those answers.
func (w *walk) otherChain(c baseChain) (nft.Verdict, error) {
	before := *w
	before.fate.Path, before.fate.Depends = slices.Clip(before.fate.Path), slices.Clip(before.fate.Depends)
	type end struct {
		walk    walk
		verdict nft.Verdict
	}
	var ends []end
	answers := &draws{}
	for more, n := true, 0; more; n++ {
		*w = before
		w.draws = answers
		at := place{Table: c.Table, base: c.chain, chain: c.chain}
		v, err := w.meet(c, at)
		if more = answers.next(); n == maxBranches && more {
			err, more = fmt.Errorf("it has more than %d ways for the packet", maxBranches), false
		}
		if err != nil {
			w.undecided(at, nil, err.Error())
			v = nft.Drop
		}
		known := slices.ContainsFunc(ends, func(e end) bool {
			return e.verdict.Kind == v.Kind && e.walk.fate.Result == w.fate.Result && e.walk.state() == w.state()
		})
		if !known {
			ends = append(ends, end{*w, v})
		}
	}
	chosen := 0
	if len(ends) > 1 {
		chosen = int(before.draws.draw(uint32(len(ends))))
	}
	*w = ends[chosen].walk
	w.draws = before.draws
	if len(ends) == 1 {
		w.fate.Depends = before.fate.Depends
	}
	return ends[chosen].verdict, nil
}

// meet runs a base chain of another program, if the packet comes to it.
func (w *walk) meet(c baseChain, at place) (nft.Verdict, error) {
	if !c.maybe {
		return w.runBaseChain(at)
	}
	comes := w.draws.draw(2) == 1
	verdict := "if the packet does not come by its devices"
	if comes {
		verdict = "if the packet comes by one of its devices"
	}
	w.fate.Depends = append(slices.Clip(w.fate.Depends), Step{Hook: w.hook, Table: at.Table, Chain: at.chain, Verdict: verdict})
	if comes {
		return w.runBaseChain(at)
	}
	return nft.Accept, nil
}

// OrderOfChains is the end of the Verdict of a Step in Depends that is about the order of chains.
const OrderOfChains = "before other tables' chains of its priority"

// runTogether runs chains with one priority. The kernel runs the one first that was added last (nf_hook_entries_grow). It
// lists the chains of a table in the order in which they were added, but does not tell which of two tables got its chain
// last: if that makes a difference, each table is the first one in turn, and before all the one that was made last.
func (w *walk) runTogether(chains []baseChain) (bool, error) {
	var orders [][]baseChain
	for i, c := range chains {
		if i == 0 || c.Table != chains[i-1].Table {
			isFirst := func(o baseChain) bool { return o.Table == c.Table }
			first := slices.DeleteFunc(slices.Clone(chains), func(o baseChain) bool { return !isFirst(o) })
			if len(orders) == maxOrders {
				return false, fmt.Errorf("more than %d tables have chains of the hook %s with priority %d", maxOrders, w.hook, runsAt(c.chain))
			}
			orders = append(orders, append(first, slices.DeleteFunc(slices.Clone(chains), isFirst)...))
		}
	}
	if len(orders) == 1 {
		return w.runChains(chains)
	}
	at := arrival{chains[0].chain, w.hook, w.iif, w.oif, w.state()}
	matters, known := w.others.ordered[at]
	if !known {
		var err error
		if matters, err = w.orderMatters(orders); err != nil {
			return false, err
		}
		w.others.ordered[at] = matters
	}
	if !matters {
		return w.runChains(chains)
	}
	chosen := orders[w.draws.draw(uint32(len(orders)))]
	c := chosen[0]
	w.fate.Depends = append(slices.Clip(w.fate.Depends), Step{
		Hook: w.hook, Table: c.Table, Chain: c.chain, Verdict: "if it runs " + OrderOfChains,
	})
	return w.runChains(chosen)
}

// orderMatters reports whether the order of chains makes a difference to the packet. It ends where Fates gives up.
func (w *walk) orderMatters(orders [][]baseChain) (matters bool, err error) {
	before := *w
	defer func() { *w = before }()
	before.fate.Path, before.fate.Depends = slices.Clip(before.fate.Path), slices.Clip(before.fate.Depends)
	type end struct {
		state
		on      bool
		result  Result
		decided *nft.Chain
	}
	var first map[end]bool
	for _, chains := range orders {
		ends, answers := map[end]bool{}, &draws{}
		statements := 0
		for paths := 0; paths == 0 || paths < maxPaths && statements <= maxAllStatements && answers.next(); paths++ {
			*w = before
			w.draws = answers
			on, err := w.runChains(chains)
			if err != nil {
				return false, err
			}
			statements += w.statements - before.statements
			e := end{state: w.state(), on: on, result: w.fate.Result}
			if !on {
				e.state, e.decided = state{}, w.fate.Path[len(w.fate.Path)-1].Chain
			}
			ends[e] = true
		}
		if first == nil {
			first = ends
		}
		matters = matters || !maps.Equal(first, ends)
	}
	return matters, nil
}

// undecided ends the walk at a rule whose result is not known.
func (w *walk) undecided(at place, r *nft.Rule, why string) {
	w.fate.Result = Undecided
	w.step(at, r, why)
	w.fate.Depends = append(w.fate.Depends, w.fate.Path[len(w.fate.Path)-1])
}

// truth is the result of a comparison: no, maybe or yes.
type truth int8

const (
	no truth = iota
	maybe
	yes
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// bitsOf is the content of registers. known has a bit for each bit of data that is known.
type bitsOf struct{ data, known []byte }

func knownBits(data []byte) bitsOf { return bitsOf{data, bytes.Repeat([]byte{0xff}, len(data))} }

func unknownBits(length int) bitsOf { return bitsOf{make([]byte, length), make([]byte, length)} }

func allOnes(b []byte) bool {
	for _, x := range b {
		if x != 0xff {
			return false
		}
	}
	return true
}

// equals compares the known bits.
func (b bitsOf) equals(data []byte) truth {
	for i, want := range data {
		if i < len(b.data) && (b.data[i]^want)&b.known[i] != 0 {
			return no
		}
	}
	if allOnes(b.known) {
		return yes
	}
	return maybe
}

// machine is the kernel's register machine, on one rule of another program.
type machine struct {
	*walk
	place
	rule *nft.Rule
	// data and known are the registers.
	data, known [80]byte
	// notLoopback says, by the place of the register, that it has an unknown interface other than lo.
	notLoopback map[int]bool
	// asked says that something unknown was asked for and the answer assumed to be yes.
	asked bool
}

// result is the end of an expression.
type result struct {
	matches truth
	verdict nft.Verdict
	// effect says that the expression changes what later rules see.
	effect func()
	// undecided says why the result of the rule is not known.
	undecided string
}

var goesOn = result{matches: yes}

// expressions runs a rule of another program. If it matches depends on something unknown, one of the ways is drawn as
// soon as that makes a difference.
func (s *statements) expressions(x nft.Expressions, r *nft.Rule) (matched bool, v nft.Verdict, err error) {
	m := &machine{walk: s.walk, place: s.place, rule: r, notLoopback: map[int]bool{}}
	for _, e := range s.others.decoded(r, x) {
		if s.statements++; s.statements > maxStatements || s.others.spend(1) {
			return false, v, fmt.Errorf("its rules take longer than can be followed")
		}
		res := m.run(e)
		if res.matches == no {
			return false, v, nil
		}
		m.asked = m.asked || res.matches == maybe
		if res.verdict.Kind == 0 && res.effect == nil && res.undecided == "" {
			continue
		}
		if m.asked {
			m.asked = false
			matches := s.draws.draw(2) == 1
			s.assume(m.place, r, matches)
			if !matches {
				return false, v, nil
			}
		}
		if res.undecided != "" {
			s.undecided(s.place, r, res.undecided)
			return true, nft.Drop, nil
		}
		if res.effect != nil {
			res.effect()
		}
		if res.verdict.Kind != 0 {
			return true, res.verdict, nil
		}
	}
	return !m.asked, v, nil
}

// assume notes that the fate depends on whether a rule matches.
func (w *walk) assume(at place, r *nft.Rule, matches bool) {
	verdict := "if this does not match"
	if matches {
		verdict = "if this matches"
	}
	w.fate.Depends = append(slices.Clip(w.fate.Depends), Step{Hook: w.hook, Table: at.Table, Chain: at.chain, Level: at.level, Rule: r, Verdict: verdict})
}

// place of a register among the bytes of all, or one beyond them.
func registerAt(n uint32) int {
	n = min(n, 1<<16)
	if n >= unix.NFT_REG32_00 {
		return 4 * int(n-unix.NFT_REG32_00)
	}
	return 16 * int(max(n, 1)-1)
}

// get returns the content of registers. What a dump says of more than there are is not known.
func (m *machine) get(register uint32, length int) bitsOf {
	at, all := registerAt(register), len(m.data)
	if length < 0 || length > all || at > all-length {
		return unknownBits(min(max(length, 0), all))
	}
	return bitsOf{m.data[at : at+length], m.known[at : at+length]}
}

// set fills registers, and pads them.
func (m *machine) set(register uint32, b bitsOf) result {
	at := registerAt(register)
	delete(m.notLoopback, at)
	for i := 0; i < (len(b.data)+3)/4*4 && at+i < len(m.data); i++ {
		m.data[at+i], m.known[at+i] = 0, 0xff
		if i < len(b.data) {
			m.data[at+i], m.known[at+i] = b.data[i]&b.known[i], b.known[i]
		}
	}
	return goesOn
}

// forget is for expressions that write to registers that are not known.
func (m *machine) forget() { m.known = [80]byte{} }

func (m *machine) run(e any) result {
	switch e := e.(type) {
	case *expr.Meta:
		return m.meta(e)
	case *expr.Ct:
		return m.ct(e)
	case *expr.Payload:
		if e.OperationType == expr.PayloadWrite {
			return result{matches: yes, undecided: "the rule changes the packet"}
		}
		return m.set(e.DestRegister, m.payload(e))
	case *expr.Fib:
		return m.set(e.Register, m.fib(e))
	case *expr.Immediate:
		return m.set(e.Register, knownBits(e.Data))
	case *expr.Bitwise:
		from := m.get(e.SourceRegister, int(e.Len))
		to := bitsOf{slices.Clone(from.data), slices.Clone(from.known)}
		for i := range to.data {
			if i < len(e.Mask) && i < len(e.Xor) {
				to.data[i], to.known[i] = to.data[i]&e.Mask[i]^e.Xor[i], to.known[i]|^e.Mask[i]
			}
		}
		return m.set(e.DestRegister, to)
	case *expr.Byteorder:
		return m.byteorder(e)
	case *expr.Cmp:
		return result{matches: m.compare(e)}
	case *expr.Range:
		have := m.get(e.Register, len(e.FromData))
		if !allOnes(have.known) {
			return result{matches: maybe}
		}
		in := bytes.Compare(have.data, e.FromData) >= 0 && bytes.Compare(have.data, e.ToData) <= 0
		return result{matches: truthOf(in == (e.Op == expr.CmpOpEq))}
	case *expr.Lookup:
		return m.lookup(e)
	case *expr.Verdict:
		return m.verdict(e)
	case *expr.NAT:
		return m.nat(e)
	case *expr.Masq:
		return result{matches: yes, verdict: nft.Accept, effect: m.masquerade}
	case *expr.Reject:
		return m.refuse()
	case *expr.Match:
		return m.xtMatch(e)
	case *expr.Target:
		return m.xtTarget(e)
	case *expr.Dynset:
		if len(e.Exprs) > 0 || e.Invert {
			return result{matches: maybe}
		}
		return goesOn
	case *expr.Counter, *expr.Log, *expr.FlowOffload:
		return goesOn
	case *expr.Numgen:
		if e.Modulus == 0 || e.Modulus > maxBranches {
			return m.set(e.Register, unknownBits(4))
		}
		return m.set(e.Register, knownBits([]byte(nft.IntegerData(e.Offset+m.draws.draw(e.Modulus)))))
	case *expr.Hash:
		return m.set(e.DestRegister, unknownBits(4))
	case nft.Unknown:
		m.forget()
		switch e.Name {
		case "queue", "tproxy", "synproxy", "fwd", "notrack":
			return result{matches: yes, undecided: e.Name + " is not modelled"}
		case "counter", "last", "dup", "bitwise", "numgen", "hash", "secmark", "cthelper", "cttimeout", "ctexpect":
			return goesOn
		}
	case *expr.Redir:
		return result{matches: yes, undecided: "redirect is not modelled"}
	}
	return result{matches: maybe} // limit, quota, objects and everything that is not known here
}

func (m *machine) compare(e *expr.Cmp) truth {
	have := m.get(e.Register, len(e.Data))
	var t truth
	switch e.Op {
	case expr.CmpOpEq, expr.CmpOpNeq:
		t = have.equals(e.Data)
		isLoopback := string(bytes.TrimRight(e.Data, "\x00")) == loopback && len(e.Data) > len(loopback) || bytes.Equal(e.Data, []byte(nft.IntegerData(loopbackIndex)))
		if t == maybe && isLoopback && m.notLoopback[registerAt(e.Register)] {
			t = no
		}
		if e.Op == expr.CmpOpNeq {
			t = yes - t
		}
		return t
	}
	if !allOnes(have.known) {
		return maybe
	}
	c := bytes.Compare(have.data, e.Data)
	return truthOf(map[expr.CmpOp]bool{expr.CmpOpLt: c < 0, expr.CmpOpLte: c <= 0, expr.CmpOpGt: c > 0, expr.CmpOpGte: c >= 0}[e.Op])
}

// loopbackIndex is the number of lo in every network namespace.
const loopbackIndex = 1

func (m *machine) byteorder(e *expr.Byteorder) result {
	from := m.get(e.SourceRegister, int(e.Len))
	to := bitsOf{slices.Clone(from.data), slices.Clone(from.known)}
	if size := int(e.Size); binary.NativeEndian.Uint16([]byte{1, 0}) == 1 && size > 0 {
		for at := 0; at+size <= len(to.data); at += size {
			slices.Reverse(to.data[at : at+size])
			slices.Reverse(to.known[at : at+size])
		}
	}
	return m.set(e.DestRegister, to)
}

// bitsOfValue returns the bits of a field that the evaluator models for rules of its own kind.
func bitsOfValue(v value, err error, length int) bitsOf {
	if err != nil || v.unknown != "" {
		return unknownBits(length)
	}
	return knownBits([]byte(v.data)[:min(length, len(v.data))])
}

func (m *machine) meta(e *expr.Meta) result {
	if e.SourceRegister {
		have := m.get(e.Register, 4)
		switch {
		case e.Key != expr.MetaKeyMARK:
			return goesOn // priority, nftrace
		case !allOnes(have.known):
			return result{matches: yes, undecided: "the mark that the rule sets is not known"}
		}
		mark := binary.NativeEndian.Uint32(have.data)
		return result{matches: yes, effect: func() { m.mark = mark }}
	}
	switch e.Key {
	case expr.MetaKeyMARK:
		return m.set(e.Register, knownBits([]byte(nft.IntegerData(m.mark))))
	case expr.MetaKeyNFPROTO:
		family := m.walk.family
		if !m.Table.Family.Routes() {
			family = m.Table.Family
		}
		return m.set(e.Register, knownBits([]byte{byte(family)}))
	case expr.MetaKeyL4PROTO:
		return m.set(e.Register, knownBits([]byte{m.packet.Protocol}))
	case expr.MetaKeyPROTOCOL:
		return m.set(e.Register, knownBits(m.etherType()))
	case expr.MetaKeyPKTTYPE:
		if m.atDevice {
			return m.set(e.Register, unknownBits(1)) // before the kernel looks for whom a frame is, or when it leaves
		}
		return m.set(e.Register, knownBits([]byte{unix.PACKET_HOST}))
	case expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME, expr.MetaKeyIIF, expr.MetaKeyOIF:
		return m.ifname(e)
	}
	return m.set(e.Register, unknownBits(16))
}

// etherType is the protocol of an Ethernet frame with the packet.
func (m *machine) etherType() []byte {
	if m.walk.family == nft.FamilyIP6 {
		return binary.BigEndian.AppendUint16(nil, unix.ETH_P_IPV6)
	}
	return binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP)
}

// incoming is the interface that the packet comes in by: if nobody has named it, that of the route to its source.
func (w *walk) incoming() ifname {
	if name := w.host.route(w.packet.Source.Addr()).Interface; w.iif.unknown != "" && name != "" && !w.atDevice {
		return ifname{name: name}
	}
	return w.iif
}

// ifname loads the name or the number of an interface.
func (m *machine) ifname(e *expr.Meta) result {
	of := m.oif
	if e.Key == expr.MetaKeyIIFNAME || e.Key == expr.MetaKeyIIF {
		of = m.incoming()
	}
	v := bitsOfValue(of.value(), nil, unix.IFNAMSIZ)
	if e.Key == expr.MetaKeyIIF || e.Key == expr.MetaKeyOIF {
		v = unknownBits(4)
		if index, known := m.host.Interfaces[of.name]; known || of.name == "" && of.unknown == "" {
			v = knownBits([]byte(nft.IntegerData(index)))
		}
	}
	m.set(e.Register, v)
	// Packets that come in by lo are the node's own, and packets to the node leave by lo.
	m.notLoopback[registerAt(e.Register)] = of.name != loopback
	return goesOn
}

func (m *machine) ct(e *expr.Ct) result {
	if e.SourceRegister {
		have := m.get(e.Register, 4)
		if e.Key != expr.CtKeyMARK {
			return goesOn
		}
		if !allOnes(have.known) {
			return result{matches: yes, undecided: "the connection mark that the rule sets is not known"}
		}
		mark := binary.NativeEndian.Uint32(have.data)
		return result{matches: yes, effect: func() { m.ctMark = mark }}
	}
	if m.Table.Family == nft.FamilyBridge {
		return m.set(e.Register, unknownBits(16)) // there is connection tracking of bridges, too
	}
	if !m.tracked {
		if e.Key == expr.CtKeySTATE {
			return m.set(e.Register, knownBits([]byte(nft.IntegerData(expr.CtStateBitINVALID))))
		}
		return result{matches: no} // the kernel ends the rule
	}
	var source, destination netip.AddrPort // those of answers are not known
	if e.Direction == expr.CtDirOriginal {
		source, destination = m.packet.Source, m.packet.Destination
	}
	length := m.walk.destination.Addr().BitLen() / 8
	switch e.Key {
	case expr.CtKeySTATE:
		v, err := m.field(nft.CTState)
		return m.set(e.Register, bitsOfValue(v, err, 4))
	case expr.CtKeySTATUS:
		return m.set(e.Register, bitsOf{[]byte(nft.IntegerData(m.ctStatus())), []byte(nft.IntegerData(ctStatusKnown))})
	case expr.CtKeyMARK:
		if m.packet.Connection != nil {
			return m.set(e.Register, unknownBits(4))
		}
		return m.set(e.Register, knownBits([]byte(nft.IntegerData(m.ctMark))))
	case expr.CtKeyDIRECTION:
		return m.set(e.Register, knownBits([]byte{expr.CtDirOriginal}))
	case expr.CtKeySRC, expr.CtKeySRCIP, expr.CtKeySRCIP6:
		return m.set(e.Register, addrBits(source.Addr(), length))
	case expr.CtKeyDST, expr.CtKeyDSTIP, expr.CtKeyDSTIP6:
		return m.set(e.Register, addrBits(destination.Addr(), length))
	case expr.CtKeyPROTODST:
		return m.set(e.Register, portBits(destination.Port()))
	}
	return m.set(e.Register, unknownBits(16))
}

func portBits(port uint16) bitsOf {
	if port == 0 {
		return unknownBits(2)
	}
	return knownBits(binary.BigEndian.AppendUint16(nil, port))
}

func addrBits(addr netip.Addr, length int) bitsOf {
	if !addr.IsValid() {
		return unknownBits(length)
	}
	return knownBits(addr.AsSlice())
}

// payload returns a part of the packet's headers.
func (m *machine) payload(e *expr.Payload) bitsOf {
	header := unknownBits(64)
	put := func(at int, b bitsOf) {
		copy(header.data[at:], b.data)
		copy(header.known[at:], b.known)
	}
	switch {
	case e.Base == expr.PayloadBaseLLHeader:
		put(12, knownBits(m.etherType()))
	case e.Base == expr.PayloadBaseNetworkHeader && m.walk.family == nft.FamilyIP:
		put(0, knownBits([]byte{4<<4 | 5}))
		put(6, bitsOf{[]byte{0, 0}, []byte{0x3f, 0xff}}) // no fragment
		put(9, knownBits([]byte{m.packet.Protocol}))
		put(12, addrBits(m.source.Addr(), 4))
		put(16, addrBits(m.walk.destination.Addr(), 4))
	case e.Base == expr.PayloadBaseNetworkHeader:
		put(6, knownBits([]byte{m.packet.Protocol}))
		put(8, addrBits(m.source.Addr(), 16))
		put(24, addrBits(m.walk.destination.Addr(), 16))
	case e.Base == expr.PayloadBaseTransportHeader && hasPorts(m.packet.Protocol):
		put(0, portBits(m.source.Port()))
		put(2, portBits(m.walk.destination.Port()))
		if m.packet.Protocol == unix.IPPROTO_TCP && m.packet.Connection == nil {
			put(13, knownBits([]byte{tcpSYN}))
		}
	}
	from, to := uint64(e.Offset), uint64(e.Offset)+uint64(e.Len)
	if to > uint64(len(header.data)) {
		return unknownBits(int(min(e.Len, 64)))
	}
	return bitsOf{header.data[from:to], header.known[from:to]}
}

// tcpSYN are the flags of the first packet of a TCP connection.
const tcpSYN = 0x02

// fib returns the type of an address, or the interface of the route to it.
func (m *machine) fib(e *expr.Fib) bitsOf {
	addr := m.walk.destination.Addr()
	if e.FlagSADDR {
		addr = m.source.Addr()
	}
	switch {
	case !e.ResultADDRTYPE:
		return m.fibInterface(e, addr)
	case e.FlagIIF || e.FlagOIF:
		return unknownBits(16)
	case !addr.IsValid() || m.host.isLocal(addr):
		return knownBits([]byte(nft.IntegerData(unix.RTN_LOCAL)))
	case addr.IsMulticast():
		return knownBits([]byte(nft.IntegerData(unix.RTN_MULTICAST)))
	}
	return knownBits([]byte(nft.IntegerData(unix.RTN_UNICAST)))
}

// fibInterface returns the interface that leads to an address, or whether there is one: by the main routing table, and
// perhaps only if that is the one that the packet comes in by.
func (m *machine) fibInterface(e *expr.Fib, addr netip.Addr) bitsOf {
	name := m.host.route(addr).Interface
	if len(m.host.Routes) == 0 || name == loopback || e.FlagOIF || !addr.IsValid() || m.hook == nft.HookOutput {
		return unknownBits(unix.IFNAMSIZ)
	}
	if e.FlagIIF {
		in := m.incoming()
		if in.unknown != "" {
			return unknownBits(unix.IFNAMSIZ)
		}
		if in.name != name {
			name = ""
		}
	}
	index, known := m.host.Interfaces[name]
	switch {
	case e.FlagPRESENT:
		return knownBits([]byte(nft.IntegerData(uint32(len(name[:min(len(name), 1)])))))
	case e.ResultOIFNAME:
		return knownBits(append([]byte(name), make([]byte, unix.IFNAMSIZ-min(len(name), unix.IFNAMSIZ))...))
	case known || name == "":
		return knownBits([]byte(nft.IntegerData(index)))
	}
	return unknownBits(4)
}

func (m *machine) lookup(e *expr.Lookup) result {
	set := m.Set(e.SetName)
	if set == nil || m.host.Lookup == nil {
		return result{matches: yes, undecided: "the set " + e.SetName + " cannot be read"}
	}
	key := m.get(e.SourceRegister, set.Key.Len())
	if !allOnes(key.known) || len(key.data) < set.Key.Len() {
		if e.IsDestRegSet {
			return result{matches: maybe, undecided: "what the map has for the packet is not known"}
		}
		return result{matches: maybe}
	}
	found := m.lookUp(lookedUp{m.Table, e.SetName, nft.Data(key.data)})
	switch {
	case found.err != nil:
		return result{matches: yes, undecided: found.err.Error()}
	case found.ok == e.Invert:
		return result{matches: no}
	case e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT:
		if found.Verdict.Kind == 0 {
			return result{matches: yes, undecided: "the verdict of the map is not modelled"}
		}
		return result{matches: yes, verdict: found.Verdict}
	case e.IsDestRegSet:
		return m.set(e.DestRegister, knownBits([]byte(found.Value)))
	}
	return goesOn
}

func (m *machine) verdict(e *expr.Verdict) result {
	for _, v := range []struct {
		kind expr.VerdictKind
		is   nft.Verdict
	}{
		{expr.VerdictAccept, nft.Accept}, {expr.VerdictDrop, nft.Drop}, {expr.VerdictReturn, nft.Return},
		{expr.VerdictJump, nft.Jump(e.Chain)}, {expr.VerdictGoto, nft.Goto(e.Chain)},
	} {
		if v.kind == e.Kind {
			return result{matches: yes, verdict: v.is}
		}
	}
	return result{matches: yes, undecided: "the verdict is not modelled"}
}

func (m *machine) refuse() result {
	return result{matches: yes, verdict: nft.Drop, effect: func() { m.fate.Result = Refused }}
}

// nat translates the packet to the address and port in registers.
func (m *machine) nat(e *expr.NAT) result {
	isDestination := e.Type == expr.NATTypeDestNAT
	from := m.source
	if isDestination {
		from = m.walk.destination
	}
	addr, port := from.Addr(), from.Port()
	if e.RegAddrMin != 0 {
		b := m.get(e.RegAddrMin, m.walk.destination.Addr().BitLen()/8)
		if !allOnes(b.known) || e.RegAddrMax != 0 && e.RegAddrMax != e.RegAddrMin || e.Prefix {
			return result{matches: yes, undecided: "the address that the rule translates to is not known"}
		}
		addr, _ = netip.AddrFromSlice(b.data)
	}
	if e.RegProtoMin != 0 {
		b := m.get(e.RegProtoMin, 2)
		if !allOnes(b.known) || e.RegProtoMax != 0 && e.RegProtoMax != e.RegProtoMin {
			return result{matches: yes, undecided: "the port that the rule translates to is not known"}
		}
		port = binary.BigEndian.Uint16(b.data)
	}
	return m.translate(isDestination, netip.AddrPortFrom(addr, port))
}

func (m *machine) translate(isDestination bool, to netip.AddrPort) result {
	return result{matches: yes, verdict: nft.Accept, effect: func() {
		if isDestination {
			m.setDestination(to)
			return
		}
		m.translated[source], m.changed[source] = true, true
		m.source = netip.AddrPortFrom(to.Addr(), 0)
	}}
}
