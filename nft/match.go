package nft

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Op compares the two sides of a match. Its values are the kernel's numbers (NFT_CMP_*).
type Op uint8

// The operators of a match.
const (
	Equal Op = iota
	NotEqual
	// The others are for fields in network byte order, such as Family.TTL.
	Less
	LessOrEqual
	Greater
	GreaterOrEqual
)

// infix returns the operator and a space, as nft lists it: equality is not written.
func (o Op) infix() string {
	switch o {
	case NotEqual:
		return "!= "
	case Less:
		return "< "
	case LessOrEqual:
		return "<= "
	case Greater:
		return "> "
	case GreaterOrEqual:
		return ">= "
	}
	return ""
}

// Match compares a field with a value:
//
//	Match{Field: MetaL4proto, Value: "tcp"}                           meta l4proto tcp
//	Match{Field: IPSaddr, Op: NotEqual, Value: netip.Prefix{…}}       ip saddr != 10.244.0.0/16
//	Match{Field: MetaIifname, Value: "veth*"}                         iifname "veth*"
//	Match{Field: CTState, Value: CTStateNew}                          ct state new
//
// As in nft, CTState and CTStatus equal a value if they have any of its bits.
type Match struct {
	// Field is a Field, or another expression.
	Field Expr
	Op    Op
	// Value is of a type that Values names for the field, or Data as Concat.Pack returns it. An address can
	// be a netip.Prefix; its host bits do not count. A name of an interface that ends in "*" matches all
	// names that begin with the text before the "*". A Range holds for the values from First to Last. A Constant is
	// compared with as many first bytes of the field as it has.
	Value any
}

// String returns the statement as nft lists it.
func (m Match) String() string {
	operator := m.Op.infix()
	_, masked := m.Field.(Bits)
	_, raw := m.Value.(Constant)
	if m.Op == Equal && (masked || raw && m.field().isFlags()) {
		operator = "== "
	}
	return m.Field.String() + " " + operator + m.valueText()
}

// MatchMark compares bits of the packet mark, in host byte order, as in `meta mark & 0x00004000 == 0x00004000`.
func MatchMark(mask, value uint32) Match {
	return Match{Field: Bits{Of: MetaMark, Mask: IntegerData(mask), Xor: IntegerData(0)}, Value: Constant(IntegerData(value))}
}

// field returns the Field that is compared; 0 if it is another expression.
func (m Match) field() Field {
	f, _ := m.Field.(Field)
	return f
}

func (m Match) valueText() string {
	switch v := m.Value.(type) {
	case netip.Prefix:
		if p := v.Masked(); !p.IsSingleIP() {
			return p.String()
		}
		return v.Addr().String()
	case string:
		if m.field().isIfname() {
			return quote(v)
		}
	case Data:
		return Concat{m.Field}.Format(v)
	case Constant:
		if _, masked := m.Field.(Bits); masked {
			return m.Field.dataType().text(Data(v))
		}
		if t := m.Field.dataType(); t.length == len(v) && len(v) > 0 {
			return t.format(string(v))
		}
		return fmt.Sprintf("0x%x", string(v))
	case Range:
		return Match{Field: m.Field, Value: v.First}.valueText() + "-" + Match{Field: m.Field, Value: v.Last}.valueText()
	}
	c, err := Concat{m.Field}.Pack(m.Value)
	if err != nil {
		return fmt.Sprint(m.Value)
	}
	return Concat{m.Field}.Format(c)
}

// Comparison is a match as the kernel makes it: it loads the field, or as much of it as First is long, masks it if there is
// a Mask of the same length, and compares it with First. With Last it compares with the range from First to Last.
type Comparison struct {
	Op                Op
	Mask, First, Last []byte
}

// Comparison returns the match as the kernel makes it. The error is ErrInvalid.
func (m Match) Comparison() (Comparison, error) {
	c := Comparison{Op: m.Op}
	f, isField := m.Field.(Field)
	if m.Field == nil || isField && !f.known() {
		return c, invalidf("nft: %v cannot be compared", m.Field)
	}
	if err := c.setValue(m.Field, m.Value); err != nil {
		return c, err
	}
	_, raw := m.Value.(Constant)
	length := m.Field.dataType().length
	switch {
	case (m.Op > NotEqual || c.Last != nil && !raw) && isField && f.dataType().order != orderBig:
		return c, invalidf("nft: %s has no order", m.Field)
	case f.isFlags() && m.Op == Equal && !raw && c.Last == nil:
		c = Comparison{Op: NotEqual, Mask: c.First, First: make([]byte, length)}
	}
	return c, nil
}

func (c *Comparison) setValue(e Expr, value any) error {
	f, isField := e.(Field)
	length := e.dataType().length
	switch v := value.(type) {
	case netip.Prefix:
		if !f.isAddr() || !v.IsValid() || v.Addr().BitLen() != 8*length {
			return invalidf("nft: %s cannot be compared with the prefix %s", e, v)
		}
		c.Mask, c.First = net.CIDRMask(v.Bits(), 8*length), v.Masked().Addr().AsSlice()
	case Constant:
		if len(v) > length {
			return invalidf("nft: %s cannot be compared with %d bytes", e, len(v))
		}
		c.First = []byte(v)
	case Data:
		if len(v) != netlinkattr.Padded(length) {
			return invalidf("nft: %s cannot be compared with %d bytes", e, len(v))
		}
		c.First = []byte(v)[:length]
	case Range:
		var last Comparison
		if err := cmp.Or(c.setValue(e, v.First), last.setValue(e, v.Last)); err != nil {
			return err
		}
		c.Last = last.First
	default:
		if !isField {
			return invalidf("nft: %s cannot be compared with %#v", e, value)
		}
		data, err := f.packMatch(value)
		if err != nil {
			return invalidf("nft: %s cannot be compared with %#v: %w", e, value, err)
		}
		c.First = data
	}
	return nil
}

// packMatch returns a Go value as the bytes to compare. The name of an interface is cut before a "*" at its end.
func (f Field) packMatch(value any) ([]byte, error) {
	if name, ok := value.(string); ok && f.isIfname() {
		if prefix, wildcard := strings.CutSuffix(name, "*"); wildcard {
			return []byte(prefix), checkText("interface", prefix, unix.IFNAMSIZ-1)
		}
	}
	data, err := f.dataType().pack(value)
	return []byte(data), err
}

func (f Field) known() bool    { return f > 0 && int(f) < len(fields) }
func (f Field) isAddr() bool   { return f >= IPSaddr && f <= IP6Daddr }
func (f Field) isIfname() bool { return f == MetaIifname || f == MetaOifname }
func (f Field) isFlags() bool  { return f == CTState || f == CTStatus || f == TCPFlags }

func (m Match) linearize(l *linearizer) {
	c, err := m.Comparison()
	if err != nil {
		l.refuse(err)
		return
	}
	loads := m.Field.loadVia(unix.NFT_REG_1, register(m.Field.dataType().length/4+4))
	if ones, bits := net.IPMask(c.Mask).Size(); m.field().isAddr() && ones%8 == 0 && ones > 0 && bits > 0 {
		loads[0].(*expr.Payload).Len = uint32(ones / 8) // as nft does, instead of masking whole bytes
		c.Mask, c.First = nil, c.First[:ones/8]
	}
	l.add(loads...)
	if c.Mask != nil {
		l.mask(c.Mask, make([]byte, len(c.Mask)))
	}
	if c.Last != nil {
		l.add(&expr.Range{Op: expr.CmpOp(c.Op), Register: unix.NFT_REG_1, FromData: c.First, ToData: c.Last})
		return
	}
	l.add(&expr.Cmp{Op: expr.CmpOp(c.Op), Register: unix.NFT_REG_1, Data: c.First})
}

// matchOf returns the match of an expression with data, in the form in which this package's callers write the match.
func matchOf(family Family, e Expr, op Op, data []byte) Match {
	m := Match{Field: e, Op: op, Value: Constant(data)}
	switch e := e.(type) {
	case Bits:
		if f, is := e.Of.(Field); is && isZero(e.Xor) && len(data) == f.dataType().length && len(e.Mask) == len(data) {
			if masked := maskedMatch(f, op, []byte(e.Mask), data); masked != nil {
				return masked.(Match)
			}
		}
	case Payload:
		for _, f := range []Field{IPSaddr, IPDaddr, IP6Saddr, IP6Daddr} {
			whole, _ := f.Payload()
			if whole.Base == e.Base && whole.Offset == e.Offset && len(data) == int(e.Length) && whole.Length > e.Length && f.InFamily(family) {
				return Match{Field: f, Op: op, Value: prefixOf(f, data, 8*len(data))}
			}
		}
	case Field:
		switch length := e.dataType().length; {
		case e.isAddr() && len(data) == length:
			m.Value = prefixOf(e, data, 8*length)
		case e.isIfname() && (len(data) == length || bytes.HasSuffix(data, []byte{0})):
			m.Value = strings.TrimRight(string(data), "\x00")
		case e.isIfname() && len(data) < length:
			m.Value = string(data) + "*"
		case len(data) == length && !(e.isFlags() && op == Equal):
			m.Value = pad(Data(data))
		}
	}
	return m
}

func prefixOf(f Field, data []byte, bits int) netip.Prefix {
	full := make([]byte, f.dataType().length)
	copy(full, data)
	addr, _ := netip.AddrFromSlice(full)
	return netip.PrefixFrom(addr, bits)
}

func maskedMatch(f Field, op Op, mask, data []byte) Statement {
	ones, bits := net.IPMask(mask).Size()
	switch {
	case f.isAddr():
		// For a prefix of whole bytes linearize loads fewer bytes, so a mask of whole bytes is another program's.
		wholeBytes := ones > 0 && ones%8 == 0
		if p := prefixOf(f, data, ones); bits > 0 && !wholeBytes && p == p.Masked() {
			return Match{Field: f, Op: op, Value: p}
		}
	case f.isFlags() && op == NotEqual && allZero(data):
		return Match{Field: f, Value: pad(Data(mask))}
	}
	return nil
}

func allZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
