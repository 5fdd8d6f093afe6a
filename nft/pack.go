package nft

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"reflect"

	"golang.org/x/sys/unix"
)

// Values are the parts of a key, one for each field of its type. The type of each part follows from the field:
//
//	addresses            netip.Addr of the field's family
//	meta l4proto         "tcp", "udp", "sctp" or an integer
//	ports                an integer
//	marks, slots, flags  an integer
//	interface names      a string
//
// Integers may have any of Go's integer types.
type Values []any

// Range is a range of values, as the last of the Values of an element's key in a set with Interval. For a range of
// addresses that is a prefix, a netip.Prefix will do instead.
type Range struct {
	// First and Last belong to the range. Both are of the type that Values has for the field.
	First, Last any
}

// Pack returns a value of the concatenation as Data. The error is ErrInvalid and names the part that the concatenation
// cannot hold.
//
//	key := nft.Concat{nft.IPDaddr, nft.MetaL4proto, nft.ThDport}
//	data, err := key.Pack(netip.MustParseAddr("192.0.2.1"), "tcp", 80)
//
// Code that packs many values of one shape can concatenate AddrData, ProtoData, PortData and IntegerData instead, which
// check nothing.
func (c Concat) Pack(values ...any) (Data, error) {
	if len(values) != len(c) {
		return "", invalidf("nft: %s has %d parts, and there are %d values", c, len(c), len(values))
	}
	b := make([]byte, 0, c.Len())
	for i, e := range c {
		t := e.dataType()
		part, err := t.pack(values[i])
		if err != nil {
			return "", invalidf("nft: part %d of %s: %s cannot be %#v: %w", i+1, c, e, values[i], err)
		}
		b = append(b, pad(Data(part))...)
	}
	return Data(b), nil
}

// NewElement returns an element of the set with the key. In a verdict map, value is one Verdict; in another map, one
// part for each field of Data; in a set, nothing. In a set with Interval the last part of the key may be a Range or a
// netip.Prefix. The error is ErrInvalid and names the part that the set cannot hold.
//
//	endpoint, err := endpoints.NewElement(nft.Values{addr, "tcp", 80, 0}, netip.MustParseAddr("10.0.0.1"), 8080)
//	service, err := services.NewElement(nft.Values{addr, "tcp", 80}, nft.Goto("cluster-2"))
//	source, err := sources.NewElement(nft.Values{addr, netip.MustParsePrefix("198.51.100.0/24")})
func (s *Set) NewElement(key Values, value ...any) (e Element, err error) {
	if e.Key, e.KeyEnd, err = s.packKey(key); err != nil {
		return Element{}, invalidf("%w (key of %s %s)", err, s.Kind(), s.Name)
	}
	if e.Value, e.Verdict, err = s.packValue(value); err != nil {
		return Element{}, invalidf("%w (value of %s %s)", err, s.Kind(), s.Name)
	}
	return e, nil
}

func (s *Set) packKey(key Values) (first, last Data, err error) {
	from, to := key, key
	if n := len(key) - 1; n >= 0 && s.Interval {
		switch r := key[n].(type) {
		case Range:
			from, to = append(key[:n:n], r.First), append(key[:n:n], r.Last)
		case netip.Prefix:
			if !r.IsValid() {
				return "", "", invalidf("nft: part %d of %s is not a valid prefix", n+1, s.Key)
			}
			from, to = append(key[:n:n], r.Masked().Addr()), append(key[:n:n], LastAddr(r))
		}
	}
	if first, err = s.Key.Pack(from...); err != nil || !s.Interval {
		return first, "", err
	}
	if last, err = s.Key.Pack(to...); err == nil && last < first {
		err = invalidf("nft: the range ends at %s, before it begins at %s", s.Key.Format(last), s.Key.Format(first))
	}
	return first, last, err
}

// LastAddr returns the last address of a prefix.
func LastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

func (s *Set) packValue(value []any) (Data, Verdict, error) {
	if !s.Verdicts {
		d, err := s.Data.Pack(value...)
		return d, Verdict{}, err
	}
	if len(value) == 1 {
		if v, ok := value[0].(Verdict); ok && v.Kind != 0 {
			return "", v, nil
		}
	}
	return "", Verdict{}, invalidf("nft: a verdict map takes one verdict, not %v", value)
}

func packAddr(is func(netip.Addr) bool) func(any) (Data, error) {
	return func(v any) (Data, error) {
		addr, ok := v.(netip.Addr)
		if !ok || !is(addr) || addr.Zone() != "" {
			return "", fmt.Errorf("not a netip.Addr of that family")
		}
		return AddrData(addr), nil
	}
}

func packProto(v any) (Data, error) {
	if name, ok := v.(string); ok {
		for number, known := range protocolNames {
			if known == name {
				return Data([]byte{byte(number)}), nil
			}
		}
		return "", fmt.Errorf("a name other than tcp, udp, sctp, icmp and ipv6-icmp")
	}
	n, err := integer(v, math.MaxUint8)
	return Data([]byte{byte(n)}), err
}

func packByte(v any) (Data, error) {
	n, err := integer(v, math.MaxUint8)
	return Data([]byte{byte(n)}), err
}

func packPort(v any) (Data, error) {
	n, err := integer(v, math.MaxUint16)
	return Data(binary.BigEndian.AppendUint16(nil, uint16(n))), err
}

func packHostOrder(v any) (Data, error) {
	n, err := integer(v, math.MaxUint32)
	return IntegerData(uint32(n)), err
}

func packName(v any) (Data, error) {
	name, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("not a string")
	}
	if err := checkText("interface", name, unix.IFNAMSIZ-1); err != nil {
		return "", err
	}
	return Data(append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)), nil
}

// integer returns v, of any integer type, if it is from 0 to most.
func integer(v any, most uint64) (uint64, error) {
	n := most + 1
	switch r := reflect.ValueOf(v); {
	case r.CanInt() && r.Int() >= 0:
		n = uint64(r.Int())
	case r.CanUint():
		n = r.Uint()
	}
	if n > most {
		return 0, fmt.Errorf("not an integer from 0 to %d", most)
	}
	return n, nil
}
