package nft

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// delinearizer turns the kernel's register machine back into statements. It tracks which expression has filled each register.
// An expression without a statement becomes Unknown.
type delinearizer struct {
	family    Family
	sets      func(name string) *Set
	registers [20]loaded
	out       []Statement
	anonymous []anonymousLookup
	comment   string
}

// loaded is what a register holds: four bytes of an expression's value, from an offset on.
type loaded struct {
	expr   Expr
	offset int
}

// delinearize returns the rule with the expressions.
func delinearize(family Family, sets func(string) *Set, exprs []any) Rule {
	d := delinearizer{family: family, sets: sets}
	for _, e := range exprs {
		if !d.step(e) {
			d.emit(Unknown{Name: exprName(e)})
		}
	}
	r := Rule{Statements: d.out, Comment: d.comment, anonymous: d.anonymous}
	again, err := r.linearize()
	r.external = err != nil || !sameExprs(exprs, again)
	return r
}

// sameExprs reports whether a rule that was read has the expressions that its statements would be written with. It ignores
// what the kernel and nft add without effect.
func sameExprs(read []any, written []expr.Any) bool {
	read = slices.DeleteFunc(slices.Clone(read), func(e any) bool {
		swap, is := e.(*expr.Byteorder)
		return is && swap.Len == 1 && swap.SourceRegister == swap.DestRegister // without effect: nft puts it before ranges
	})
	return slices.EqualFunc(read, written, func(a any, b expr.Any) bool { return reflect.DeepEqual(plain(a), plain(b)) })
}

// plain returns an expression without counts and other additions of the kernel, and with one number for all registers: two
// rules that differ in registers alone mean the same.
func plain(e any) any {
	from := reflect.ValueOf(e)
	if from.Kind() != reflect.Pointer {
		return e
	}
	if nat, is := e.(*expr.NAT); is {
		plain := *nat
		if plain.RegAddrMax == plain.RegAddrMin {
			plain.RegAddrMax = 0
		}
		if plain.RegProtoMax == plain.RegProtoMin {
			plain.RegProtoMax = 0
		}
		from = reflect.ValueOf(&plain)
	}
	to := reflect.New(from.Type().Elem())
	to.Elem().Set(from.Elem())
	for i := range to.Elem().NumField() {
		f := to.Elem().Field(i)
		switch name := to.Elem().Type().Field(i).Name; {
		case slices.Contains([]string{"SetID", "Specified", "IsRegDevSet", "Bytes", "Packets"}, name):
			f.SetZero()
		case strings.Contains(name, "Reg") && f.Kind() == reflect.Uint32 && f.Uint() != unix.NFT_REG_VERDICT:
			f.SetUint(unix.NFT_REG_1)
		}
	}
	return to.Interface()
}

func exprName(e any) string {
	switch e := e.(type) {
	case Unknown:
		return e.Name
	case *expr.FlowOffload:
		return "flow_offload"
	}
	return strings.ToLower(reflect.TypeOf(e).Elem().Name())
}

func (d *delinearizer) emit(s Statement) bool {
	d.out = append(d.out, s)
	switch s.(type) {
	case Assign, NAT: // a field that was loaded before may have another value now
		for i, r := range d.registers {
			if _, is := r.expr.(Constant); !is {
				d.registers[i] = loaded{}
			}
		}
	}
	return true
}

// step takes the next expression. It reports whether the expression is a statement, or loads a value for a later one.
func (d *delinearizer) step(e any) bool {
	switch e := e.(type) {
	case *expr.Payload:
		return d.payload(e)
	case *expr.Meta:
		return d.loadOrSet(metaField(e), e.Register, e.SourceRegister)
	case *expr.Ct:
		return d.loadOrSet(ctField(e), e.Register, e.SourceRegister)
	case *expr.Fib:
		return d.load(e.Register, fibOf(e))
	case *expr.Numgen:
		return d.load(e.Register, Numgen{Mod: e.Modulus, Offset: e.Offset, Inc: e.Type == unix.NFT_NG_INCREMENTAL})
	case *expr.Hash:
		return d.load(e.DestRegister, d.hash(e))
	case *expr.Immediate:
		return d.load(e.Register, Constant(e.Data))
	case *expr.Bitwise:
		return d.load(e.DestRegister, d.bits(e))
	case *expr.Byteorder:
		if e.Len == 1 {
			return d.load(e.DestRegister, d.value(e.SourceRegister, 1))
		}
		return d.load(e.DestRegister, Swapped{Of: d.value(e.SourceRegister, int(e.Len)), Size: int(e.Size)})
	case *expr.Cmp:
		return d.emit(matchOf(d.family, d.value(e.Register, len(e.Data)), Op(e.Op), e.Data))
	case *expr.Range:
		of := Range{First: Constant(e.FromData), Last: Constant(e.ToData)}
		return d.emit(Match{Field: d.value(e.Register, len(e.FromData)), Op: Op(e.Op), Value: of})
	case *expr.Lookup:
		return d.lookup(e)
	case *expr.Dynset:
		return d.dynset(e)
	}
	return d.action(e)
}

// action takes an expression that is a statement by itself.
func (d *delinearizer) action(e any) bool {
	switch e := e.(type) {
	case *expr.NAT:
		return d.emit(d.nat(e))
	case *expr.Masq:
		n := NAT{Kind: MasqueradeNAT, Flags: natFlags(e.Random, e.FullyRandom, e.Persistent)}
		n.Port, n.PortEnd = d.span(e.RegProtoMin, e.RegProtoMax, 2)
		return d.emit(n)
	case *expr.Redir:
		n := NAT{Kind: RedirectNAT, Family: d.family}
		n.Port, n.PortEnd = d.span(e.RegisterProtoMin, e.RegisterProtoMax, 2)
		return d.emit(n)
	case *expr.Dup:
		switch to := d.value(e.RegAddr, d.addrLen(0)).(type) {
		case Mapped:
			return to.Offset == 0 && e.RegDev == 0 && d.emit(Dup{Key: to.Key, Map: to.Map})
		case Constant:
			return e.RegDev == 0 && len(to) == d.addrLen(0) && d.emit(Dup{Addr: to})
		}
	case *expr.Reject:
		return d.emit(d.reject(e))
	case *expr.Counter:
		return d.emit(Counter{})
	case *expr.Limit:
		return d.emit(limitOf(e))
	case *expr.Objref:
		kind := objectKinds[uint32(e.Type)]
		return kind != "" && e.Name != "" && d.emit(UseObject{Kind: kind, Name: e.Name})
	case *expr.Verdict:
		kind := verdictKind(e.Kind)
		return kind != 0 && d.emit(Verdict{kind, e.Chain})
	case Extension:
		_, comment, _ := e.meaning(d.family)
		for _, s := range e.Meaning(d.family) {
			d.emit(s)
		}
		d.comment += comment
		return true
	case Unknown:
		if e.Name == "notrack" {
			return d.emit(Notrack{})
		}
		d.registers = [20]loaded{} // it may have written anywhere
	}
	return false
}

// load notes which registers an expression fills.
func (d *delinearizer) load(register uint32, e Expr) bool {
	first, size := registerIndex(register), max(1, netlinkattr.Padded(e.dataType().length)/4)
	for i := max(first, 0); i < min(first+size, len(d.registers)); i++ {
		d.registers[i] = loaded{e, 4 * (i - first)}
	}
	return true
}

// value returns the expression whose value, or its first bytes, a register holds.
func (d *delinearizer) value(register uint32, length int) Expr {
	i := registerIndex(register)
	if i >= 0 && i < len(d.registers) {
		in := d.registers[i]
		m, isMapped := in.expr.(Mapped)
		switch {
		case isMapped && length > 0 && in.offset+length <= m.Length:
			m.Offset, m.Length = m.Offset+in.offset, length
			return m
		case in.expr != nil && in.offset == 0 && (length <= in.expr.dataType().length):
			return in.expr
		}
	}
	return Opaque{Name: fmt.Sprintf("register-%d", register), Length: min(max(length, 0), 4*len(d.registers))}
}

// span returns the expressions of two registers. to is nil if the second register is 0 or equals the first.
func (d *delinearizer) span(first, last uint32, length int) (from, to Expr) {
	if first == 0 {
		return nil, nil
	}
	from = d.value(first, length)
	if last != 0 && last != first {
		to = d.value(last, length)
	}
	return from, to
}

// concat returns the expressions in length bytes of registers, beginning with a register.
func (d *delinearizer) concat(register uint32, length int) (c Concat) {
	for i := registerIndex(register); c.Len() < length; {
		if i < 0 || i >= len(d.registers) || d.registers[i].expr == nil || d.registers[i].offset > 0 {
			break
		}
		c = append(c, d.registers[i].expr)
		i += max(4, netlinkattr.Padded(d.registers[i].expr.dataType().length)) / 4
	}
	if c.Len() != netlinkattr.Padded(length) || length == 0 {
		if m, is := d.value(register, length).(Mapped); is {
			return Concat{m}
		}
		return Concat{Opaque{Name: fmt.Sprintf("register-%d", register), Length: length}}
	}
	return c
}

// maxPayload bounds the bytes of a packet that an expression may load: four registers of 128 bits.
const maxPayload = 64

func (d *delinearizer) payload(p *expr.Payload) bool {
	at := Payload{PayloadBase(p.Base), p.Offset, p.Len}
	var field Expr = at
	for _, f := range payloadFields[at] {
		if f.InFamily(d.family) {
			field = f
			break
		}
	}
	if p.Len > maxPayload {
		field = Opaque{Name: "payload", Length: maxPayload}
	}
	if p.OperationType == expr.PayloadLoad {
		return d.load(p.DestRegister, field)
	}
	value := d.value(p.SourceRegister, int(min(p.Len, maxPayload)))
	masked, _ := value.(Bits)
	if masked.Of == at && at == (Payload{NetworkHeader, ttlWordOffset, ttlWordLength}) && d.family == FamilyIP &&
		masked.Mask == "\x00\xff" && len(masked.Xor) == ttlWordLength && masked.Xor[1] == 0 {
		return d.emit(SetTTL(d.family, masked.Xor[0]))
	}
	return d.emit(Assign{field, value})
}

// The fields by the expressions that load them.
var (
	payloadFields = map[Payload][]Field{}
	metaFields    = map[expr.MetaKey]Field{}
	ctFields      = map[expr.Ct]Field{}
)

func init() {
	for f := Field(1); int(f) < len(fields); f++ {
		switch x := f.load(0).(type) {
		case *expr.Payload:
			p, _ := f.Payload()
			payloadFields[p] = append(payloadFields[p], f)
		case *expr.Meta:
			metaFields[x.Key] = f
		case *expr.Ct:
			ctFields[*x] = f
		}
	}
}

func metaField(m *expr.Meta) Expr {
	if f := metaFields[m.Key]; f != 0 {
		return f
	}
	return Opaque{Name: fmt.Sprintf("meta key-%d", m.Key), Length: 4}
}

func ctField(c *expr.Ct) Expr {
	if f := ctFields[expr.Ct{Key: c.Key, Direction: c.Direction}]; f != 0 {
		return f
	}
	return Opaque{Name: fmt.Sprintf("ct key-%d", c.Key), Length: 16}
}

func fibOf(e *expr.Fib) Expr {
	f := Fib{Saddr: e.FlagSADDR, Daddr: e.FlagDADDR, Mark: e.FlagMARK, Iif: e.FlagIIF, Oif: e.FlagOIF}
	switch {
	case e.FlagPRESENT:
		f.Result = FibExists
	case e.ResultOIFNAME:
		f.Result = FibOifname
	case e.ResultADDRTYPE:
		f.Result = FibType
	default:
		f.Result = FibOif
	}
	switch f {
	case Fib{Saddr: true, Result: FibType}:
		return FibSaddrType
	case Fib{Daddr: true, Result: FibType}:
		return FibDaddrType
	}
	return f
}

// loadOrSet loads a field into a register, or sets the field to the content of the register.
func (d *delinearizer) loadOrSet(field Expr, register uint32, sets bool) bool {
	if !sets {
		return d.load(register, field)
	}
	return d.emit(Assign{field, d.value(register, field.dataType().length)})
}

func (d *delinearizer) bits(b *expr.Bitwise) Expr {
	of := d.value(b.SourceRegister, int(b.Len))
	if int(b.Len) != len(b.Mask) || len(b.Mask) != len(b.Xor) || len(b.Mask) == 0 || of.dataType().length < len(b.Mask) {
		return Opaque{Name: "bitwise", Length: int(min(b.Len, maxPayload))}
	}
	return Bits{Of: of, Mask: Data(b.Mask), Xor: Data(b.Xor)}
}

func (d *delinearizer) hash(h *expr.Hash) Expr {
	c := d.concat(h.SourceRegister, netlinkattr.Padded(int(min(h.Length, maxPayload))))
	of, is := c[0].(Field)
	hash := JHash{Field: of, Mod: h.Modulus, Seed: h.Seed, Offset: h.Offset}
	if len(c) == 2 && is {
		hash.And, is = c[1].(Field)
	}
	if !is || len(c) > 2 || h.Type != expr.HashTypeJenkins || int(h.Length) != hash.Fields().keyLen() {
		return Opaque{Name: "hash", Length: 4}
	}
	return hash
}

func (d *delinearizer) lookup(e *expr.Lookup) bool {
	set := d.sets(e.SetName)
	if set == nil {
		return false
	}
	key := d.concat(e.SourceRegister, set.Key.keyLen())
	if set.kernel.anonymous {
		d.anonymous = append(d.anonymous, anonymousLookup{set, key})
	}
	op := Equal
	if e.Invert {
		op = NotEqual
	}
	switch {
	case !e.IsDestRegSet:
		return d.emit(InSet{Key: key, Op: op, Set: e.SetName})
	case e.DestRegister == unix.NFT_REG_VERDICT:
		return d.emit(Vmap{Key: key, Map: e.SetName})
	}
	return d.load(e.DestRegister, Mapped{Key: key, Map: e.SetName, Length: set.Data.keyLen()})
}

func (d *delinearizer) addrLen(family Family) int {
	if family != FamilyIP && family != FamilyIP6 {
		family = d.family
	}
	return byFamily(family, 4, 16)
}

func natFlags(random, fullyRandom, persistent bool) string {
	var words []string
	for word, is := range map[string]bool{"random": random, "fully-random": fullyRandom, "persistent": persistent} {
		if is {
			words = append(words, word)
		}
	}
	slices.Sort(words)
	return strings.Join(words, ",")
}

func (d *delinearizer) nat(e *expr.NAT) Statement {
	n := NAT{Kind: DestinationNAT, Family: Family(e.Family), Flags: natFlags(e.Random, e.FullyRandom, e.Persistent)}
	if e.Type != expr.NATTypeDestNAT {
		n.Kind = SourceNAT
	}
	if e.Prefix {
		n.Flags = strings.TrimPrefix(n.Flags+",prefix", ",")
	}
	n.Addr, n.AddrEnd = d.span(e.RegAddrMin, e.RegAddrMax, d.addrLen(n.Family))
	n.Port, n.PortEnd = d.span(e.RegProtoMin, e.RegProtoMax, 2)
	return n
}

func (d *delinearizer) reject(e *expr.Reject) Statement {
	r := Reject{Family: d.family}
	switch {
	case e.Type == unix.NFT_REJECT_TCP_RST:
		r.With = TCPReset
	case d.family == FamilyIP || d.family == FamilyIP6:
		if *e != *d.family.reject() {
			r.With = fmt.Sprintf("icmp code %d", e.Code)
		}
	case e.Type == unix.NFT_REJECT_ICMPX_UNREACH && e.Code == icmpxPortUnreachable:
	case e.Type == unix.NFT_REJECT_ICMP_UNREACH && (e.Code == icmpPortUnreachable || e.Code == icmpv6PortUnreachable):
	case e.Type == unix.NFT_REJECT_ICMPX_UNREACH:
		r.With = fmt.Sprintf("icmpx code %d", e.Code)
	default:
		r.With = fmt.Sprintf("icmp code %d", e.Code)
	}
	return r
}

// icmpxPortUnreachable is the kernel's code for the answer of both families (NFT_REJECT_ICMPX_PORT_UNREACH).
const icmpxPortUnreachable = 1

func (d *delinearizer) dynset(e *expr.Dynset) bool {
	set := d.sets(e.SetName)
	if set == nil || e.Invert || (set.Data == nil) != (e.SrcRegData == 0) {
		return false
	}
	key := d.concat(e.SrcRegKey, set.Key.keyLen())
	if e.Operation == netlinkattr.DynsetDelete {
		return set.Data == nil && e.Timeout == 0 && len(e.Exprs) == 0 && d.emit(Delete{Set: e.SetName, Key: key})
	}
	u := Update{Map: e.SetName, Key: key, Timeout: e.Timeout, Add: e.Operation == unix.NFT_DYNSET_OP_ADD}
	if set.Data != nil {
		u.Data = d.concat(e.SrcRegData, set.Data.keyLen())
	}
	var with []string
	for _, x := range e.Exprs {
		with = append(with, exprName(x))
	}
	u.With = strings.Join(with, " ")
	return e.Operation <= unix.NFT_DYNSET_OP_UPDATE && d.emit(u)
}
