package nft

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
)

// Other programs' rules have the expressions in this file. A rule with them can be committed if their parts can. None of them
// can be part of a set's type.

// PayloadBase is the header in which a Payload lies (NFT_PAYLOAD_*).
type PayloadBase uint32

// The headers.
const (
	LinkHeader PayloadBase = iota
	NetworkHeader
	TransportHeader
)

// Payload is a part of the packet for which there is no Field, as in `@th,16,16`.
type Payload struct {
	Base PayloadBase
	// Offset and Length are in bytes.
	Offset, Length uint32
}

// String returns the expression as nft writes it.
func (p Payload) String() string {
	base := fmt.Sprintf("base-%d", uint32(p.Base))
	if int(p.Base) < len(payloadBases) {
		base = payloadBases[p.Base]
	}
	return fmt.Sprintf("@%s,%d,%d", base, 8*p.Offset, 8*p.Length)
}

var payloadBases = [...]string{LinkHeader: "ll", NetworkHeader: "nh", TransportHeader: "th"}

func (p Payload) dataType() dataType { return typeBytes(int(p.Length)) }

func (p Payload) loadVia(register, _ uint32) []expr.Any {
	return []expr.Any{payload(expr.PayloadBase(p.Base), p.Offset, p.Length)(register)}
}

// Payload returns the part of the packet that the field is, if it is one.
func (f Field) Payload() (p Payload, is bool) {
	if load, is := f.load(0).(*expr.Payload); is {
		return Payload{PayloadBase(load.Base), load.Offset, load.Len}, true
	}
	return p, false
}

// Bits is the value of an expression after "& Mask ^ Xor", as in `meta mark & 0x000000ff`.
type Bits struct {
	Of Expr
	// Mask and Xor are as long as the values of Of, without padding.
	Mask, Xor Data
}

// String returns the expression as nft writes it.
func (b Bits) String() string {
	switch t := b.Of.dataType(); {
	case string(b.Mask) == strings.Repeat("\xff", len(b.Mask)):
		return b.Of.String() + " ^ " + t.text(b.Xor)
	case b.sets():
		return b.Of.String() + " | " + t.text(b.Xor)
	case isZero(b.Xor):
		return b.Of.String() + " & " + t.text(b.Mask)
	default:
		return b.Of.String() + " & " + t.text(b.Mask) + " ^ " + t.text(b.Xor)
	}
}

// sets reports whether the expression sets the bits of Xor and keeps all others.
func (b Bits) sets() bool {
	for i := range min(len(b.Mask), len(b.Xor)) {
		if b.Mask[i] != ^b.Xor[i] {
			return false
		}
	}
	return true
}

func isZero(d Data) bool { return strings.Trim(string(d), "\x00") == "" }

// text prints bits of a value of the type, which may be no value of it.
func (t dataType) text(d Data) string {
	switch {
	case t.length == 0 || len(d) != t.length:
		return fmt.Sprintf("0x%x", string(d))
	case t.order == orderHost && t.length == 4:
		return formatMark(string(d))
	}
	return t.format(string(d))
}

func (b Bits) dataType() dataType { return b.Of.dataType() }

func (b Bits) loadVia(register, scratch uint32) []expr.Any {
	return append(b.Of.loadVia(register, scratch), &expr.Bitwise{
		SourceRegister: register, DestRegister: register, Len: uint32(len(b.Mask)), Mask: []byte(b.Mask), Xor: []byte(b.Xor),
	})
}

// Swapped is a value in the other byte order: numbers of Size bytes. nft does not write that it swaps.
type Swapped struct {
	Of   Expr
	Size int
}

// String returns the expression as nft writes it.
func (s Swapped) String() string { return s.Of.String() }

func (s Swapped) dataType() dataType {
	t := s.Of.dataType()
	if format := t.format; binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		t.format = func(b string) string {
			swapped := []byte(b)
			slices.Reverse(swapped)
			return format(string(swapped))
		}
	}
	return t
}

func (s Swapped) loadVia(register, scratch uint32) []expr.Any {
	return append(s.Of.loadVia(register, scratch), &expr.Byteorder{
		SourceRegister: register, DestRegister: register, Op: expr.ByteorderHton,
		Len: uint32(s.dataType().length), Size: uint32(s.Size),
	})
}

// Constant is a value that a rule has itself, without padding.
type Constant Data

// String returns an address or a port as nft writes it, and other values as a number.
func (c Constant) String() string {
	switch len(c) {
	case 4, 16:
		return formatAddr(string(c))
	case 2:
		return formatPort(string(c))
	}
	return fmt.Sprintf("0x%x", string(c))
}

func (c Constant) dataType() dataType { return typeBytes(len(c)) }

func (c Constant) loadVia(register, _ uint32) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: register, Data: []byte(c)}}
}

// Mapped is a part of the value that a map has for a key, as in `ip saddr map @addresses`. If the map lacks the key, the
// next rule runs.
type Mapped struct {
	Key Concat
	// Map is the name of a map of the rule's table.
	Map string
	// Offset and Length, in bytes, say which part of the value it is.
	Offset, Length int
}

// port returns the port that a value of the map has behind the address.
func (m Mapped) port() Mapped {
	return Mapped{Key: m.Key, Map: m.Map, Offset: netlinkattr.Padded(m.Length), Length: typePort.length}
}

// String returns the expression as nft writes it.
func (m Mapped) String() string { return m.Key.String() + " map @" + m.Map }

func (m Mapped) dataType() dataType { return typeBytes(m.Length) }

func (m Mapped) loadVia(to, _ uint32) []expr.Any {
	var l linearizer
	l.load(m.Key)
	l.add(&expr.Lookup{SourceRegister: register(0), SetName: m.Map, IsDestRegSet: true, DestRegister: to})
	return l.out
}

// Fib is the result of a search of the routing tables, as in `fib saddr . iif oif missing`. FibSaddrType and FibDaddrType
// are Fields.
type Fib struct {
	// Saddr and Daddr, Mark, Iif and Oif say by what to search.
	Saddr, Daddr, Mark, Iif, Oif bool
	// Result is "type", "oif", "oifname", or "exists" for whether there is a route.
	Result string
}

// String returns the expression as nft writes it.
func (f Fib) String() string {
	var by []string
	for _, flag := range []struct {
		set  bool
		name string
	}{{f.Saddr, "saddr"}, {f.Daddr, "daddr"}, {f.Mark, "mark"}, {f.Iif, "iif"}, {f.Oif, "oif"}} {
		if flag.set {
			by = append(by, flag.name)
		}
	}
	result := f.Result
	if result == FibExists {
		result = "oif"
	}
	return "fib " + strings.Join(by, " . ") + " " + result
}

// The results of a Fib.
const (
	FibType    = "type"
	FibOif     = "oif"
	FibOifname = "oifname"
	FibExists  = "exists"
)

func (f Fib) dataType() dataType {
	switch f.Result {
	case FibType:
		return typeFib
	case FibExists:
		return typePresent
	case FibOifname:
		return typeIfname
	}
	return typeInteger
}

func (f Fib) loadVia(register, _ uint32) []expr.Any {
	return []expr.Any{&expr.Fib{
		Register: register, FlagSADDR: f.Saddr, FlagDADDR: f.Daddr, FlagMARK: f.Mark, FlagIIF: f.Iif, FlagOIF: f.Oif,
		FlagPRESENT: f.Result == FibExists, ResultADDRTYPE: f.Result == FibType, ResultOIFNAME: f.Result == FibOifname,
		ResultOIF: f.Result == FibOif || f.Result == FibExists,
	}}
}

// Opaque is a value whose length alone is known. A rule with an Opaque cannot be committed.
type Opaque struct {
	// Name says where the value comes from.
	Name string
	// Length is in bytes.
	Length int
}

// String returns the name.
func (o Opaque) String() string { return o.Name }

func (o Opaque) dataType() dataType { return typeBytes(o.Length) }

func (o Opaque) loadVia(uint32, uint32) []expr.Any { return nil }

// opaque returns a type whose length alone is known.
func opaque(length uint32) Concat {
	return Concat{Opaque{fmt.Sprintf("opaque-%d-bytes", length), int(length)}}
}

// isOpaque reports whether the set was read from the kernel and is of a kind that this package does not write.
func (s *Set) isOpaque() bool {
	_, ok := s.Key[0].(Opaque)
	return ok
}
