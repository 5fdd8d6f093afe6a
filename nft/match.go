package nft

import (
	"bytes"
	"encoding/binary"
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
	// Less is for Family.TTL.
	Less
)

// infix returns the operator and a space, as nft lists it: equality is not written.
func (o Op) infix() string {
	switch o {
	case NotEqual:
		return "!= "
	case Less:
		return "< "
	}
	return ""
}

// Match compares a field with a value:
//
//	Match{Field: MetaL4proto, Value: "tcp"}                           meta l4proto tcp
//	Match{Field: IPSaddr, Op: NotEqual, Value: netip.Prefix{…}}       ip saddr != 10.244.0.0/16
//	Match{Field: MetaIifname, Value: "veth*"}                         iifname "veth*"
//	Match{Field: CTState, Value: CTStateNew}                          ct state new
//	Match{Field: MetaMark, Mask: 0x4000, Value: 0x4000}               meta mark & 0x00004000 == 0x00004000
//
// As in nft, CTState and CTStatus equal a value if they have any of its bits.
type Match struct {
	Field Field
	Op    Op
	// Mask, if not 0, has the bits of MetaMark to compare, in host byte order.
	Mask uint32
	// Value is of a type that Values names for the field, or Data as Concat.Pack returns it. An address can
	// be a netip.Prefix; its host bits do not count. A name of an interface that ends in "*" matches all
	// names that begin with the text before the "*".
	Value any
}

// String returns the statement as nft lists it.
func (m Match) String() string {
	if m.Mask != 0 {
		operator := "=="
		if m.Op == NotEqual {
			operator = "!="
		}
		return fmt.Sprintf("%s & 0x%08x %s %s", m.Field, m.Mask, operator, m.valueText())
	}
	return m.Field.String() + " " + m.Op.infix() + m.valueText()
}

func (m Match) valueText() string {
	switch v := m.Value.(type) {
	case netip.Prefix:
		if p := v.Masked(); !p.IsSingleIP() {
			return p.String()
		}
		return v.Addr().String()
	case string:
		if m.Field.isIfname() {
			return quote(v)
		}
	case Data:
		return Concat{m.Field}.Format(v)
	}
	c, err := Concat{m.Field}.Pack(m.Value)
	if err != nil {
		return fmt.Sprint(m.Value)
	}
	return Concat{m.Field}.Format(c)
}

// Compare reports whether the match holds for a value of its field. The error is ErrInvalid.
func (m Match) Compare(value Data) (bool, error) {
	c, err := m.kernel()
	if err != nil {
		return false, err
	}
	if len(value) < len(c.data) {
		return false, invalidf("nft: %s: the value has %d bytes, and %d are compared", m, len(value), len(c.data))
	}
	if c.op == Less {
		return string(value[:len(c.data)]) < string(c.data), nil
	}
	equal := true
	for i, want := range c.data {
		b := value[i]
		if c.mask != nil {
			b &= c.mask[i]
		}
		equal = equal && b == want
	}
	return equal == (c.op == Equal), nil
}

// kernelMatch is a match as the kernel makes it: it loads the field, or as much of it as data is long, masks it if
// there is a mask of the same length, and compares it with data.
type kernelMatch struct {
	op         Op
	mask, data []byte
}

func (m Match) kernel() (kernelMatch, error) {
	c := kernelMatch{op: m.Op}
	if !m.Field.known() {
		return c, invalidf("nft: %s cannot be compared", m.Field)
	}
	length := m.Field.dataType().length
	switch v := m.Value.(type) {
	case netip.Prefix:
		if !m.Field.isAddr() || !v.IsValid() || v.Addr().BitLen() != 8*length {
			return c, invalidf("nft: %s cannot be compared with the prefix %s", m.Field, v)
		}
		c.mask, c.data = net.CIDRMask(v.Bits(), 8*length), v.Masked().Addr().AsSlice()
	case Data:
		if len(v) != netlinkattr.Padded(length) {
			return c, invalidf("nft: %s cannot be compared with %d bytes", m.Field, len(v))
		}
		c.data = []byte(v)[:length]
	default:
		data, err := m.Field.packMatch(m.Value)
		if err != nil {
			return c, invalidf("nft: %s cannot be compared with %#v: %w", m.Field, m.Value, err)
		}
		c.data = data
	}
	switch {
	case m.Op == Less && !m.Field.isTTL():
		return c, invalidf("nft: %s cannot be less than something", m.Field)
	case m.Mask != 0 && m.Field != MetaMark:
		return c, invalidf("nft: %s is compared without a mask", m.Field)
	case m.Mask != 0:
		c.mask = AppendInteger(nil, m.Mask)
	case m.Field.isFlags() && m.Op == Equal:
		c = kernelMatch{op: NotEqual, mask: c.data, data: make([]byte, length)}
	}
	return c, nil
}

// packMatch returns a Go value as the bytes to compare: of the name of an interface those before a "*".
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
func (f Field) isTTL() bool    { return f == IPTTL || f == IP6Hoplimit }

func (m Match) linearize(l *linearizer) {
	c, err := m.kernel()
	if err != nil {
		l.refuse(err)
		return
	}
	load := m.Field.load(unix.NFT_REG_1)
	if ones, bits := net.IPMask(c.mask).Size(); m.Field.isAddr() && ones%8 == 0 && ones > 0 && bits > 0 {
		load.(*expr.Payload).Len = uint32(ones / 8) // as nft does, instead of masking whole bytes
		c.mask, c.data = nil, c.data[:ones/8]
	}
	l.add(load)
	if c.mask != nil {
		l.mask(c.mask, make([]byte, len(c.mask)))
	}
	l.add(&expr.Cmp{Op: expr.CmpOp(c.op), Register: unix.NFT_REG_1, Data: c.data})
}

// matchOf returns the match of a field, loaded as v says, with data; nil if there is none.
func matchOf(f Field, op Op, v loadedValue, data []byte) Statement {
	length := f.dataType().length
	switch {
	case v.mask != nil && (len(v.mask) != len(data) || len(data) != length || !allZero(v.xor)):
		return nil
	case v.mask != nil:
		return maskedMatch(f, op, v.mask, data)
	case f.isAddr() && len(data) == length && v.length == 0, f.isAddr() && len(data) == v.length && v.length > 0:
		return Match{Field: f, Op: op, Value: prefixOf(f, data, 8*len(data))}
	case v.length > 0:
		return nil
	case f.isIfname() && len(data) == length:
		return Match{Field: f, Op: op, Value: strings.TrimRight(string(data), "\x00")}
	case f.isIfname():
		return Match{Field: f, Op: op, Value: string(data) + "*"}
	case len(data) == length && !(f.isFlags() && op == Equal):
		return Match{Field: f, Op: op, Value: pad(Data(data))}
	}
	return nil
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
		// linearize loads fewer bytes instead of masking whole ones, so those masks are somebody else's.
		wholeBytes := ones > 0 && ones%8 == 0
		if p := prefixOf(f, data, ones); bits > 0 && !wholeBytes && p == p.Masked() {
			return Match{Field: f, Op: op, Value: p}
		}
	case f.isFlags() && op == NotEqual && allZero(data):
		return Match{Field: f, Value: pad(Data(mask))}
	case f == MetaMark && len(data) == 4 && !allZero(mask):
		return Match{Field: f, Op: op, Mask: binary.NativeEndian.Uint32(mask), Value: Data(data)}
	}
	return nil
}

func allZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
