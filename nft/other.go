package nft

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// hook returns the family's hook with the number of an inet hook.
func (f Family) hook(inet Hook) Hook {
	switch {
	case f == FamilyNetdev && inet == HookPrerouting, f == FamilyInet && inet == "hook-5":
		return HookIngress
	case f == FamilyNetdev:
		return HookEgress
	}
	return inet
}

// Routes reports whether the base chains of the family are called where packets are routed.
func (f Family) Routes() bool { return f == FamilyIP || f == FamilyIP6 || f == FamilyInet }

// Expressions is the whole of a rule that another program wrote: the expressions of the kernel's register machine.
// Committing it is ErrInvalid.
type Expressions struct {
	family  Family
	encoded string
	sets    map[string]*Set
}

func (e Expressions) linearize(l *linearizer) {
	l.refuse(invalidError{errors.New("a rule of another program cannot be committed")})
}

// List returns the expressions: pointers to types of google/nftables/expr, and Unknown for those that it cannot decode.
func (e Expressions) List() (list []any) {
	// What cannot be decoded is Unknown already, so there is no error.
	_ = netlinkattr.Each([]byte(e.encoded), func(_ uint16, b []byte) error {
		list = append(list, decodeExpr(e.family, b))
		return nil
	})
	return list
}

// Bounds of ReadOthers and RecordOthers.
const (
	maxOtherRules = 100_000 // of one table
	maxListedSets = 1_000   // of one table, to print their first elements
	// maxListedElement bounds the elements of an anonymous set that are printed.
	maxListedElement = 12
	// maxRecordedBytes are those of all tables together.
	maxRecordedBytes = 32 << 20
)

// MaxRecordedElements bounds the elements of a set that RecordOthers records. To list them takes time in proportion to
// the square of their number.
const MaxRecordedElements = 10_000

// leftOutError says why the contents of a table were left out.
type leftOutError string

func (e leftOutError) Error() string { return string(e) }

// otherDecoder builds the table of another program from the messages that describe it: chains, sets, elements, rules.
type otherDecoder struct {
	table  *Table
	chains map[string]*Chain
	sets   map[string]*Set
	rules  int
}

func newOtherDecoder(t *Table) *otherDecoder {
	t.Kernel.Other, t.Kernel.Handles, t.Kernel.Devices = true, map[string][]uint64{}, map[string][]string{}
	return &otherDecoder{table: t, chains: map[string]*Chain{}, sets: map[string]*Set{}}
}

func (d *otherDecoder) take(m reply) error {
	switch typ := m.kind(); {
	case len(m.Data) < nfgenmsgLen:
		return fmt.Errorf("message %d of %d bytes", typ, len(m.Data))
	case typ == unix.NFT_MSG_NEWCHAIN:
		c, err := decodeChain(m.Data)
		if err != nil {
			return err
		}
		if c.Hook != "" {
			c.Hook = d.table.Family.hook(c.Hook)
			if d.table.Kernel.Devices[c.Name], err = decodeDevices(m.Data); err != nil {
				return err
			}
		}
		d.table.Chains, d.chains[c.Name] = append(d.table.Chains, c), c
	case typ == unix.NFT_MSG_NEWSET:
		s, err := decodeSet(m.Data)
		if err != nil {
			return err
		}
		d.table.Sets, d.sets[s.Name] = append(d.table.Sets, s), s
	case typ == unix.NFT_MSG_NEWSETELEM:
		return d.elements(m.Data)
	case typ == unix.NFT_MSG_NEWRULE:
		if d.rules++; d.rules > maxOtherRules {
			return leftOutError(fmt.Sprintf("it has more than %d rules", maxOtherRules))
		}
		return decodeAttributes(m.Data, d.rule())
	}
	return nil
}

func (d *otherDecoder) elements(data []byte) error {
	s := d.sets[elementsOf(data)]
	if s == nil {
		return nil // the set came while the sets were listed
	}
	s.kernel.recorded = true
	return eachElement(data, func(raw *rawElement) error {
		e := *raw
		e.key, e.keyEnd, e.value, e.chain, e.userdata = slices.Clone(e.key), slices.Clone(e.keyEnd), slices.Clone(e.value), slices.Clone(e.chain), nil
		s.kernel.listed = append(s.kernel.listed, &e)
		return nil
	})
}

// rule takes the attributes of a rule, of which the chain comes first.
func (d *otherDecoder) rule() func(uint16, []byte) error {
	var at *Chain
	return func(typ uint16, b []byte) error {
		switch handles := d.table.Kernel.Handles; {
		case typ == unix.NFTA_RULE_CHAIN:
			if at = d.chains[netlinkattr.Text(b)]; at != nil {
				at.Rules = append(at.Rules, Rule{})
			}
		case at == nil:
		case typ == unix.NFTA_RULE_HANDLE && len(b) == 8:
			handles[at.Name] = append(handles[at.Name], binary.BigEndian.Uint64(b))
		case typ == unix.NFTA_RULE_EXPRESSIONS:
			at.Rules[len(at.Rules)-1].Statements = []Statement{Expressions{family: d.table.Family, encoded: string(b), sets: d.sets}}
		case typ == unix.NFTA_RULE_USERDATA:
			at.Rules[len(at.Rules)-1].Comment = string(commentIn(b))
		}
		return nil
	}
}

// Find is Conn.Lookup in a table that Recording.Other returned. A set that RecordOthers did not record is an error.
func (t *Table) Find(set string, key Data) (e Element, found bool, err error) {
	s := t.Set(set)
	switch {
	case s == nil || len(key) < s.Key.keyLen():
		return e, false, fmt.Errorf("nft: table %s %s has no set %s with keys of %d bytes", t.Family, t.Name, set, len(key))
	case !s.kernel.recorded:
		return e, false, fmt.Errorf("set %s has more than %d elements, which the dump leaves out", set, MaxRecordedElements)
	}
	var catchAll, best *rawElement
	for _, r := range s.kernel.listed {
		switch k := key[:s.Key.keyLen()]; {
		case r.timeout > 0 && r.expires == 0:
		case r.catchAll():
			catchAll = r
		case !s.kernel.bounds && s.contains(r, k):
			best = r
		// The element before the key decides: the beginning of a range, or the first key after one. Of two with one key, the
		// beginning counts.
		case s.kernel.bounds && string(r.key) <= string(k) &&
			(best == nil || bytes.Compare(r.key, best.key)+endFirst(best, r) > 0):
			best = r
		}
	}
	if best == nil || best.isEnd() {
		best = catchAll
	}
	if best == nil {
		return e, false, nil
	}
	return best.element(), true, nil
}

// endFirst is 1 of two elements with one key of which the first is an end, else 0.
func endFirst(a, b *rawElement) int {
	if bytes.Equal(a.key, b.key) && a.isEnd() && !b.isEnd() {
		return 1
	}
	return 0
}

// Recorded reports whether the set has all elements that it had in the kernel: see RecordOthers and Find.
func (s *Set) Recorded() bool { return s.kernel.recorded }

// contains reports whether each field of the key is in the element's range.
func (s *Set) contains(r *rawElement, key Data) bool {
	end := r.keyEnd
	if len(end) == 0 {
		return string(r.key) == string(key)
	}
	fields := s.kernel.fields
	if len(fields) == 0 {
		fields = []int{len(key)}
	}
	for at := 0; len(fields) > 0; fields = fields[1:] {
		to := at + fields[0]
		if to > min(len(r.key), len(end), len(key)) ||
			string(key[at:to]) < string(r.key[at:to]) || string(key[at:to]) > string(end[at:to]) {
			return false
		}
		at = netlinkattr.Padded(to)
	}
	return true
}

// operand is the text of what a register holds.
type operand struct {
	text string
	typ  dataType // length 0: unknown
	data []byte   // of an immediate
	mask []byte
}

// printer turns expressions into text that resembles nft's.
type printer struct {
	Expressions
	regs  map[int]operand
	words []string
	// protocol is that of the transport header, once a rule has asked for it.
	protocol string
}

// String prints the rule much as nft lists it.
func (e Expressions) String() string {
	p := printer{Expressions: e, regs: map[int]operand{}}
	for _, x := range e.List() {
		p.print(x)
	}
	return strings.Join(p.words, " ")
}

func (p *printer) say(words ...string) { p.words = append(p.words, words...) }

func (p *printer) load(register uint32, o operand) { p.regs[registerIndex(register)] = o }

func (p *printer) print(x any) {
	switch x := x.(type) {
	case *expr.Payload:
		if x.OperationType == expr.PayloadWrite {
			p.say("payload set")
			return
		}
		o := payloadOperand(p.family, x)
		if port, is := strings.CutPrefix(o.text, "th "); is && p.protocol != "" {
			o.text = p.protocol + " " + port
			if n := len(p.words); slices.Equal(p.words[max(0, n-2):], []string{MetaL4proto.String(), p.protocol}) {
				p.words = p.words[:n-2]
			}
		}
		p.load(x.DestRegister, o)
	case *expr.Meta:
		p.meta(x)
	case *expr.Ct:
		p.ct(x)
	case *expr.Fib:
		p.load(x.Register, fibOperand(x))
	case *expr.Bitwise:
		o := p.regs[registerIndex(x.SourceRegister)]
		o.mask = x.Mask
		if x.SourceRegister != x.DestRegister || !bytes.Equal(x.Xor, make([]byte, len(x.Xor))) {
			o = operand{text: o.text + bitwiseText(x, o.typ.order == orderHost), typ: o.typ}
		}
		p.load(x.DestRegister, o)
	case *expr.Byteorder:
		p.load(x.DestRegister, p.regs[registerIndex(x.SourceRegister)])
	case *expr.Immediate:
		p.load(x.Register, operand{text: immediateText(x.Data), data: x.Data})
	case *expr.Numgen:
		word := "inc"
		if x.Type == unix.NFT_NG_RANDOM {
			word = "random"
		}
		p.load(x.Register, operand{text: fmt.Sprintf("numgen %s mod %d", word, x.Modulus), typ: typeInteger})
	case *expr.Cmp:
		p.cmp(x)
	case *expr.Range:
		o := p.regs[registerIndex(x.Register)]
		p.say(o.text, strings.TrimSpace(opText(x.Op)+o.format(x.FromData)+"-"+o.format(x.ToData)))
	case *expr.Lookup:
		p.lookup(x)
	case *expr.Dynset:
		p.say(fmt.Sprintf("update @%s { %s }", x.SetName, p.regs[registerIndex(x.SrcRegKey)].text))
	case *expr.NAT:
		p.nat(x)
	case *expr.Limit:
		p.say(fmt.Sprintf("limit rate %d", x.Rate))
	case *expr.Match:
		p.say(fmt.Sprintf("xt match %q", x.Name))
	case *expr.Target:
		p.say(fmt.Sprintf("xt target %q", x.Name))
	case *expr.Verdict:
		if kind := verdictKind(x.Kind); kind != 0 {
			p.say(Verdict{kind, x.Chain}.String())
			return
		}
		p.say(fmt.Sprintf("verdict %d", x.Kind))
	case *expr.Masq:
		p.say("masquerade")
	case *expr.Redir:
		p.say("redirect")
	case *expr.FlowOffload:
		p.say("flow add @" + x.Name)
	case Unknown:
		p.say(x.Name)
	default:
		p.say(exprName(x))
	}
}

// bitwiseText prints what is done to a number: "| 0x4000", "^ 0x4000" or both halves of it.
func bitwiseText(x *expr.Bitwise, hostOrder bool) string {
	mask, xor := slices.Clone(x.Mask), slices.Clone(x.Xor)
	if hostOrder && binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		slices.Reverse(mask)
		slices.Reverse(xor)
	}
	sets, keeps := true, true // all bits of xor, and all bits of the number
	for i := range mask {
		sets, keeps = sets && i < len(xor) && mask[i] == ^xor[i], keeps && mask[i] == 0xff
	}
	switch {
	case keeps:
		return fmt.Sprintf(" ^ 0x%x", xor)
	case sets:
		return fmt.Sprintf(" | 0x%x", xor)
	}
	return fmt.Sprintf(" & 0x%x ^ 0x%x", mask, xor)
}

// cmp prints a comparison. Like nft, it leaves out those that the next one implies.
func (p *printer) cmp(x *expr.Cmp) {
	o := p.regs[registerIndex(x.Register)]
	if x.Op == expr.CmpOpEq && (o.text == "meta nfproto" || o.text == "meta protocol" && !p.family.Routes()) {
		return
	}
	p.say(o.text, strings.TrimSpace(o.compared(x.Op, x.Data)))
	if o.text == MetaL4proto.String() && x.Op == expr.CmpOpEq {
		p.protocol = p.words[len(p.words)-1]
	}
}

var opTexts = map[expr.CmpOp]string{
	expr.CmpOpNeq: "!= ", expr.CmpOpLt: "< ", expr.CmpOpLte: "<= ", expr.CmpOpGt: "> ", expr.CmpOpGte: ">= ",
}

func opText(op expr.CmpOp) string { return opTexts[op] }

// compared prints the right side of a comparison.
func (o operand) compared(op expr.CmpOp, data []byte) string {
	isBits := o.typ.name == typeCTState.name || o.typ.name == typeCTStat.name
	switch {
	case o.mask == nil:
	case isBits && op == expr.CmpOpNeq && bytes.Equal(data, make([]byte, len(data))):
		return o.format(o.mask)
	case isPrefix(o.mask) && len(data) == o.typ.length && o.isAddress():
		ones, _ := net.IPMask(o.mask).Size()
		return fmt.Sprintf("%s%s/%d", opText(op), o.format(data), ones)
	case o.typ.name == typeMark.name && len(o.mask) == 4:
		return fmt.Sprintf("& %s %s%s", o.format(o.mask), cmpText(op), o.format(data))
	default:
		return fmt.Sprintf("& 0x%x %s0x%x", o.mask, cmpText(op), data)
	}
	if o.typ.name == typeIfname.name && len(data) < o.typ.length {
		return opText(op) + `"` + strings.TrimRight(string(data), "\x00") + `*"`
	}
	return opText(op) + o.format(data)
}

func cmpText(op expr.CmpOp) string {
	if op == expr.CmpOpEq {
		return "== "
	}
	return opText(op)
}

// isPrefix reports whether a mask begins with ones and ends with zeros.
func isPrefix(mask []byte) bool {
	ones, _ := net.IPMask(mask).Size()
	return ones > 0
}

func (o operand) isAddress() bool { return o.typ.name == typeIPv4.name || o.typ.name == typeIPv6.name }

// format prints a value of the operand's type. Of an address only the first bytes may have been loaded.
func (o operand) format(data []byte) string {
	switch {
	case o.typ.length == 0 || len(data) == 0 || len(data) > o.typ.length:
		return fmt.Sprintf("0x%x", data)
	case len(data) == o.typ.length:
		return o.typ.format(string(data))
	case o.isAddress():
		whole := append(slices.Clone(data), make([]byte, o.typ.length-len(data))...)
		return fmt.Sprintf("%s/%d", o.typ.format(string(whole)), 8*len(data))
	}
	return fmt.Sprintf("0x%x", data)
}

func payloadOperand(family Family, x *expr.Payload) operand {
	for f := IPSaddr; f <= ThDport; f++ {
		load, _ := f.load(0).(*expr.Payload)
		tooLong := f == IPSaddr || f == IPDaddr
		if load.Base == x.Base && load.Offset == x.Offset && x.Len <= load.Len &&
			(family != FamilyIP6 || !tooLong) && (family != FamilyIP || f >= ThSport || tooLong) {
			return operand{text: f.String(), typ: f.dataType()}
		}
	}
	switch at := [3]uint32{uint32(x.Base), x.Offset, x.Len}; at {
	case [3]uint32{unix.NFT_PAYLOAD_NETWORK_HEADER, 9, 1}:
		return operand{text: "ip protocol", typ: typeProto}
	case [3]uint32{unix.NFT_PAYLOAD_LL_HEADER, 0, 6}:
		return operand{text: "ether daddr", typ: typeEther}
	case [3]uint32{unix.NFT_PAYLOAD_LL_HEADER, 6, 6}:
		return operand{text: "ether saddr", typ: typeEther}
	case [3]uint32{unix.NFT_PAYLOAD_LL_HEADER, 12, 2}:
		return operand{text: "ether type"}
	case [3]uint32{unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1}:
		return operand{text: "th flags"}
	}
	return operand{text: fmt.Sprintf("@%s,%d,%d", map[expr.PayloadBase]string{0: "ll", 1: "nh", 2: "th"}[x.Base], 8*x.Offset, 8*x.Len)}
}

var metaNames = map[expr.MetaKey]string{
	expr.MetaKeyLEN: "length", expr.MetaKeyPROTOCOL: "protocol", expr.MetaKeyIIF: "iif", expr.MetaKeyOIF: "oif", expr.MetaKeySKUID: "skuid",
	expr.MetaKeySKGID: "skgid", expr.MetaKeyNFPROTO: "nfproto", expr.MetaKeyPKTTYPE: "pkttype", expr.MetaKeyCGROUP: "cgroup", expr.MetaKeyIIFTYPE: "iiftype",
}

func (p *printer) meta(x *expr.Meta) {
	o := operand{text: keyText("meta", metaNames, x.Key)}
	for _, f := range []Field{MetaL4proto, MetaMark, MetaIifname, MetaOifname} {
		if load, _ := f.load(0).(*expr.Meta); load.Key == x.Key {
			o = operand{text: f.String(), typ: f.dataType()}
		}
	}
	p.loadOrSet(o, x.Register, x.SourceRegister)
}

// keyText names a key of meta or ct.
func keyText[K comparable](of string, names map[K]string, key K) string {
	return of + " " + cmp.Or(names[key], fmt.Sprintf("key-%v", key))
}

// loadOrSet loads a mark or the like into a register, or prints that it becomes the content of the register.
func (p *printer) loadOrSet(o operand, register uint32, sets bool) {
	if !sets {
		p.load(register, o)
		return
	}
	value := p.regs[registerIndex(register)]
	if value.data != nil {
		value.text = o.format(value.data)
	}
	p.say(o.text, "set", value.text)
}

var ctNames = map[expr.CtKey]string{
	expr.CtKeyDIRECTION: "direction", expr.CtKeyMARK: "mark", expr.CtKeyHELPER: "helper", expr.CtKeyZONE: "zone", expr.CtKeyLABELS: "label",
}

func (p *printer) ct(x *expr.Ct) {
	o := operand{text: keyText("ct", ctNames, x.Key)}
	for f := CTState; int(f) < len(fields); f++ {
		if load, is := f.load(0).(*expr.Ct); is && load.Key == x.Key && load.Direction == x.Direction {
			o = operand{text: f.String(), typ: f.dataType()}
		}
	}
	if x.Key == expr.CtKeyMARK {
		o.typ = typeMark
	}
	p.loadOrSet(o, x.Register, x.SourceRegister)
}

func fibOperand(x *expr.Fib) operand {
	var of []string
	for _, flag := range []struct {
		set  bool
		name string
	}{{x.FlagSADDR, "saddr"}, {x.FlagDADDR, "daddr"}, {x.FlagMARK, "mark"}, {x.FlagIIF, "iif"}, {x.FlagOIF, "oif"}} {
		if flag.set {
			of = append(of, flag.name)
		}
	}
	o := operand{text: "fib " + strings.Join(of, " . ") + " oif"}
	switch {
	case x.ResultADDRTYPE:
		o = operand{text: "fib " + strings.Join(of, " . ") + " type", typ: typeFib}
	case x.FlagPRESENT:
		o.typ = typePresent
	case x.ResultOIFNAME:
		o = operand{text: o.text + "name", typ: typeIfname}
	}
	return o
}

// typePresent is for the question whether there is a route.
var typePresent = dataType{name: "present", length: 4, format: func(b string) string {
	if strings.Trim(b, "\x00") == "" {
		return "missing"
	}
	return "exists"
}}

// typeEther is for addresses of Ethernet.
var typeEther = dataType{name: "ether_addr", length: 6, format: func(b string) string { return net.HardwareAddr(b).String() }}

func immediateText(data []byte) string {
	if addr, ok := netip.AddrFromSlice(data); ok {
		return addr.String()
	}
	if len(data) == 2 {
		return fmt.Sprint(binary.BigEndian.Uint16(data))
	}
	return fmt.Sprintf("0x%x", data)
}

func (p *printer) lookup(x *expr.Lookup) {
	key := p.keyAt(x)
	var texts []string
	for _, o := range key {
		texts = append(texts, o.text)
	}
	text, set := strings.Join(texts, " . "), p.sets[x.SetName]
	set0 := "@" + x.SetName
	if set != nil && set.kernel.anonymous {
		set0 = set.listedText(key)
	}
	switch {
	case x.IsDestRegSet && x.DestRegister == unix.NFT_REG_VERDICT:
		p.say(text, "vmap", set0)
	case x.IsDestRegSet:
		p.load(x.DestRegister, operand{text: text + " map " + set0})
		for i := 1; set != nil && i < set.Data.Len()/4; i++ { // the rest of the value
			delete(p.regs, registerIndex(x.DestRegister)+i)
		}
	case x.Invert:
		p.say(text, "!=", set0)
	default:
		p.say(text, set0)
	}
}

// keyAt returns the operands of a lookup's key.
func (p *printer) keyAt(x *expr.Lookup) (key []operand) {
	set := p.sets[x.SetName]
	for i, n := registerIndex(x.SourceRegister), 0; len(key) == 0 || set != nil && n < set.Key.Len(); {
		o := p.regs[i]
		key = append(key, o)
		size := max(4, netlinkattr.Padded(o.typ.length))
		i, n = i+size/4, n+size
	}
	return key
}

// listedText prints the elements of an anonymous set.
func (s *Set) listedText(key []operand) string {
	elements := slices.Clone(s.kernel.listed)
	slices.SortFunc(elements, func(a, b *rawElement) int { return bytes.Compare(a.key, b.key) })
	var texts []string
	for i, e := range elements {
		if i == maxListedElement {
			texts = append(texts, "…")
			break
		}
		text := formatKey(key, e.key)
		switch {
		case e.catchAll():
			text = "*"
		case e.isEnd():
			continue
		case len(e.keyEnd) > 0 && !bytes.Equal(e.key, e.keyEnd):
			text += "-" + formatKey(key, e.keyEnd)
		case i+1 < len(elements) && elements[i+1].isEnd():
			if last := before(elements[i+1].key); !bytes.Equal(last, e.key) {
				text += "-" + formatKey(key, last)
			}
		}
		if e.hasVerdict {
			text += " : " + e.element().Verdict.String()
		} else if len(e.value) > 0 {
			text += " : " + valueText(e.value)
		}
		texts = append(texts, text)
	}
	return "{ " + strings.Join(texts, ", ") + " }"
}

// valueText prints a value of a map. One as long as an address and a port counts as these.
func valueText(value []byte) string {
	const port = 4 // padded
	if n := len(value) - port; n == 4 || n == 16 {
		return immediateText(value[:n]) + " . " + formatPort(string(value[n:n+2]))
	}
	return immediateText(value)
}

// isEnd reports whether the key is the first one after a range.
func (r *rawElement) isEnd() bool { return r.flags&unix.NFT_SET_ELEM_INTERVAL_END != 0 }

// before returns the number before a number in network byte order.
func before(number []byte) []byte {
	n := new(big.Int).SetBytes(number)
	if n.Sign() == 0 {
		return number
	}
	return n.Sub(n, big.NewInt(1)).FillBytes(make([]byte, len(number)))
}

func formatKey(key []operand, data []byte) string {
	var texts []string
	for _, o := range key {
		n := o.typ.length
		if n == 0 || n > len(data) {
			return immediateText(data)
		}
		texts = append(texts, o.format(data[:n]))
		data = data[min(netlinkattr.Padded(n), len(data)):]
	}
	return strings.Join(texts, " . ")
}

func (p *printer) nat(x *expr.NAT) {
	to := []string{}
	for _, r := range []uint32{x.RegAddrMin, x.RegProtoMin} {
		if o, ok := p.regs[registerIndex(r)]; ok && r != 0 {
			to = append(to, o.text)
		}
	}
	word := "snat to "
	if x.Type == expr.NATTypeDestNAT {
		word = "dnat to "
	}
	p.say(word + strings.Join(to, ":"))
}
