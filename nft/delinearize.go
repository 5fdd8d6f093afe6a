package nft

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// delinearizer turns the kernel's register machine back into statements. It follows what
// each register holds and recognises the sequences that linearize writes; anything else
// becomes Unknown.
type delinearizer struct {
	family Family
	sets   func(name string) *Set
	loaded map[int]loadedValue
	out    []Statement
}

// loadedValue is the content of a register: a field, possibly only its first bytes, possibly masked; or the result of a
// lookup.
type loadedValue struct {
	expr      Expr
	length    int // bytes, when fewer than the field has
	mask, xor []byte
	hops      []byte // of an immediate: a hop limit
	lookup    *DNAT  // the register holds the result of this lookup in a map
}

func delinearize(family Family, sets func(string) *Set, exprs []any) []Statement {
	d := delinearizer{family: family, sets: sets, loaded: map[int]loadedValue{}}
	for _, e := range exprs {
		if !d.step(e) {
			d.emit(Unknown{Name: exprName(e)})
		}
	}
	return d.out
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
	return true
}

// step reports whether it recognises the expression.
func (d *delinearizer) step(e any) bool {
	switch e := e.(type) {
	case *expr.Payload:
		return d.loadPayload(e)
	case *expr.Numgen:
		return d.loadNumgen(e)
	case *expr.Hash:
		return d.loadHash(e)
	case *expr.Ct:
		return d.load(e.Register, e)
	case *expr.Fib:
		return d.load(e.Register, e)
	case *expr.Meta:
		return d.meta(e)
	case *expr.Bitwise:
		return d.bitwise(e)
	case *expr.Byteorder:
		return d.byteorder(e)
	case *expr.Cmp:
		return d.cmp(e)
	case *expr.Lookup:
		return d.lookup(e)
	case *expr.NAT:
		return d.nat(e)
	case *expr.Immediate:
		d.loaded[registerIndex(e.Register)] = loadedValue{hops: e.Data}
		return d.family == FamilyIP6 && len(e.Data) == hopLimitLength
	case *expr.Dup:
		return d.dup(e)
	case *expr.Dynset:
		return d.update(e)
	case *expr.Masq:
		return *e == (expr.Masq{FullyRandom: true}) && d.emit(Masquerade{})
	case *expr.Reject:
		return *e == *d.family.reject() && d.emit(Reject{Family: d.family})
	case *expr.Counter:
		return d.emit(Counter{})
	case *expr.Verdict:
		kind := verdictKind(e.Kind)
		return kind != 0 && d.emit(Verdict{kind, e.Chain})
	}
	return false
}

// load recognises the load of a field by comparing it with the load that each field would make.
func (d *delinearizer) load(reg uint32, e expr.Any) bool {
	for f := Field(1); int(f) < len(fields); f++ {
		if reflect.DeepEqual(f.load(reg), e) {
			d.loaded[registerIndex(reg)] = loadedValue{expr: f}
			return true
		}
	}
	return false
}

func (d *delinearizer) loadNumgen(n *expr.Numgen) bool {
	if n.Type != unix.NFT_NG_RANDOM || n.Offset != 0 {
		return false
	}
	d.loaded[registerIndex(n.Register)] = loadedValue{expr: Numgen{Mod: n.Modulus}}
	return true
}

func (d *delinearizer) loadHash(h *expr.Hash) bool {
	v := d.loaded[registerIndex(h.SourceRegister)]
	f, ok := v.expr.(Field)
	if !ok || v.mask != nil || v.length > 0 || h.Type != expr.HashTypeJenkins {
		return false
	}
	hash := JHash{Field: f, Mod: h.Modulus, Seed: h.Seed, Offset: h.Offset}
	if int(h.Length) > f.dataType().length {
		fields, ok := d.concatAt(h.SourceRegister, int(h.Length))
		if !ok || len(fields) != 2 {
			return false
		}
		if hash.And, ok = fields[1].(Field); !ok {
			return false
		}
	}
	d.loaded[registerIndex(h.DestRegister)] = loadedValue{expr: hash}
	return int(h.Length) == hash.Fields().keyLen()
}

// loadPayload recognises a field also when only its first bytes are loaded, which is how a
// byte-aligned prefix is matched.
func (d *delinearizer) loadPayload(p *expr.Payload) bool {
	if p.OperationType != expr.PayloadLoad {
		return d.writeTTL(p)
	}
	if d.family == FamilyIP && p.Base == expr.PayloadBaseNetworkHeader &&
		p.Offset == ttlWordOffset && p.Len == ttlWordLength {
		d.loaded[registerIndex(p.DestRegister)] = loadedValue{expr: IPTTL, length: ttlWordLength}
		return true
	}
	for f := Field(1); int(f) < len(fields); f++ {
		spec, ok := f.load(p.DestRegister).(*expr.Payload)
		if !ok || spec.Base != p.Base || spec.Offset != p.Offset || !f.inFamily(d.family) {
			continue
		}
		if spec.Len != p.Len && !(f.isAddr() && spec.Len > p.Len) {
			continue
		}
		v := loadedValue{expr: f}
		if p.Len < spec.Len {
			v.length = int(p.Len)
		}
		d.loaded[registerIndex(p.DestRegister)] = v
		return true
	}
	return false
}

// writeTTL recognises what SetTTL writes.
func (d *delinearizer) writeTTL(p *expr.Payload) bool {
	v, want := d.loaded[registerIndex(p.SourceRegister)], linearizer{}
	set := SetTTL{Family: d.family}
	switch {
	case len(v.hops) == hopLimitLength:
		set.Hops = v.hops[0]
	case v.expr == IPTTL && len(v.xor) == ttlWordLength && bytes.Equal(v.mask, []byte{0, 0xff}) && v.xor[1] == 0:
		set.Hops = v.xor[0]
	default:
		return false
	}
	set.linearize(&want)
	return reflect.DeepEqual(want.out[len(want.out)-1], p) && d.emit(set)
}

func (d *delinearizer) meta(m *expr.Meta) bool {
	if !m.SourceRegister {
		return d.load(m.Register, m)
	}
	v := d.loaded[registerIndex(m.Register)]
	if m.Key != expr.MetaKeyMARK || v.expr != MetaMark || len(v.xor) != 4 {
		return false
	}
	mask, xor := binary.NativeEndian.Uint32(v.mask), binary.NativeEndian.Uint32(v.xor)
	switch {
	case mask == ^xor:
		return d.emit(SetMark{Or: xor})
	case mask == ^uint32(0):
		return d.emit(SetMark{Xor: xor})
	}
	return false
}

func (d *delinearizer) bitwise(b *expr.Bitwise) bool {
	v, ok := d.loaded[registerIndex(b.SourceRegister)]
	if !ok || v.mask != nil || b.SourceRegister != b.DestRegister || len(b.Mask) == 0 || len(b.Xor) != len(b.Mask) {
		return false
	}
	v.mask, v.xor = b.Mask, b.Xor
	d.loaded[registerIndex(b.DestRegister)] = v
	return true
}

// byteorder ignores the swapping of a single byte, which has no effect. nft puts it before lookups in sets with ranges.
func (d *delinearizer) byteorder(b *expr.Byteorder) bool {
	v := d.loaded[registerIndex(b.SourceRegister)]
	return v.expr != nil && v.expr.dataType().length == 1 && b.SourceRegister == b.DestRegister
}

func (d *delinearizer) cmp(c *expr.Cmp) bool {
	v := d.loaded[registerIndex(c.Register)]
	f, isField := v.expr.(Field)
	if !isField || c.Op != expr.CmpOpEq && c.Op != expr.CmpOpNeq && (c.Op != expr.CmpOpLt || !f.isTTL()) {
		return false
	}
	s := matchOf(f, Op(c.Op), v, c.Data)
	return s != nil && d.emit(s)
}

// concatAt collects the expressions loaded from the register on, until they are length bytes.
func (d *delinearizer) concatAt(reg uint32, length int) (Concat, bool) {
	var c Concat
	for i, n := registerIndex(reg), 0; n < length; {
		v, ok := d.loaded[i]
		if !ok || v.expr == nil || v.mask != nil || v.length > 0 {
			return nil, false
		}
		c = append(c, v.expr)
		size := netlinkattr.Padded(v.expr.dataType().length)
		i += size / 4
		n += size
	}
	return c, c.Len() == length
}

func (d *delinearizer) lookup(e *expr.Lookup) bool {
	set := d.sets(e.SetName)
	if set == nil {
		return false
	}
	key, ok := d.concatAt(e.SourceRegister, set.Key.Len())
	op := Equal
	if e.Invert {
		op = NotEqual
	}
	switch {
	case !ok:
		return false
	case !e.IsDestRegSet:
		return d.emit(InSet{Key: key, Op: op, Set: e.SetName})
	case e.DestRegister == unix.NFT_REG_VERDICT:
		return d.emit(Vmap{Key: key, Map: e.SetName})
	}
	d.loaded[registerIndex(e.DestRegister)] = loadedValue{lookup: &DNAT{Family: d.family, Key: key, Map: e.SetName}}
	return true
}

func (d *delinearizer) nat(n *expr.NAT) bool {
	port := netlinkattr.Padded(d.family.Daddr().dataType().length) / 4
	from := d.loaded[registerIndex(n.RegAddrMin)].lookup
	addrEnd := n.RegAddrMax == 0 || n.RegAddrMax == n.RegAddrMin
	portEnd := n.RegProtoMax == 0 || n.RegProtoMax == n.RegProtoMin
	family, err := familyOf(n.Family)
	if err != nil || from == nil || n.Type != expr.NATTypeDestNAT ||
		registerIndex(n.RegProtoMin) != registerIndex(n.RegAddrMin)+port ||
		!addrEnd || !portEnd || n.Random || n.FullyRandom || n.Persistent || n.Prefix || family != d.family {
		return false
	}
	return d.emit(*from)
}

func (d *delinearizer) dup(e *expr.Dup) bool {
	from := d.loaded[registerIndex(e.RegAddr)].lookup
	return from != nil && e.RegDev == 0 && d.emit(Dup{Key: from.Key, Map: from.Map})
}

func (d *delinearizer) update(e *expr.Dynset) bool {
	set := d.sets(e.SetName)
	if set == nil || e.Invert || len(e.Exprs) > 0 || (set.Data == nil) != (e.SrcRegData == 0) {
		return false
	}
	key, ok := d.concatAt(e.SrcRegKey, set.Key.Len())
	switch {
	case !ok:
		return false
	case e.Operation == netlinkattr.DynsetDelete && set.Data == nil && e.Timeout == 0:
		return d.emit(Delete{Set: e.SetName, Key: key})
	case e.Operation != unix.NFT_DYNSET_OP_UPDATE:
		return false
	case set.Data == nil:
		return d.emit(Update{Map: e.SetName, Key: key, Timeout: e.Timeout})
	}
	data, ok := d.concatAt(e.SrcRegData, set.Data.Len())
	return ok && d.emit(Update{Map: e.SetName, Key: key, Data: data, Timeout: e.Timeout})
}
