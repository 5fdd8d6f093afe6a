package evaluator

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// key is the value of a concatenation. If parts of it are not known, unknown says why, and holes are their places.
type key struct {
	data    nft.Data
	unknown string
	holes   []hole
}

type hole struct{ from, to int }

// evaluate returns the value of a concatenation.
func (w *walk) evaluate(c nft.Concat) (key, error) {
	var k key
	var data strings.Builder
	for _, e := range c {
		v, err := w.expression(e)
		if err != nil {
			return key{}, fmt.Errorf("%s: %w", e, err)
		}
		from := data.Len()
		data.WriteString(string(v.data))
		if v.unknown != "" {
			k.unknown = v.unknown
			k.holes = append(k.holes, hole{from, data.Len()})
		}
	}
	k.data = nft.Data(data.String())
	return k, nil
}

func (w *walk) expression(e nft.Expr) (value, error) {
	switch e := e.(type) {
	case nft.Field:
		if e == nft.FibSaddrType || e == nft.FibDaddrType || e == nft.CTStatus {
			return value{}, errors.New("the evaluator does not know all of it")
		}
		return w.field(e)
	case nft.Numgen:
		if e.Mod == 0 {
			return value{}, errors.New("there is no number below 0")
		}
		return value{data: nft.IntegerData(w.draws.draw(e.Mod))}, nil
	case nft.JHash:
		return w.hash(e)
	}
	return value{}, errors.New("the evaluator does not model this expression")
}

// hash returns the slot that a JHash chooses.
func (w *walk) hash(h nft.JHash) (value, error) {
	if h.Mod == 0 {
		return value{}, errors.New("there is no number below 0")
	}
	if h.Field != w.family.Saddr() && h.Field != w.family.Daddr() || h.And != 0 && h.And != nft.ThSport {
		return value{}, errors.New("the evaluator hashes addresses, alone or with the source port")
	}
	k, err := w.evaluate(h.Fields())
	if err != nil || k.unknown != "" {
		return unknownValue(4, k.unknown), err
	}
	return value{data: nft.IntegerData(slot(jenkinsHash([]byte(k.data), h.Seed), h.Mod) + h.Offset)}, nil
}

// lookup finds the element of a set or map with a key.
func (s *statements) lookup(c nft.Concat, name string) (e nft.Element, found bool, err error) {
	set := s.Set(name)
	if set == nil {
		return e, false, fmt.Errorf("there is no set or map %s", name)
	}
	if set.Interval && !ordered(set.Key[len(set.Key)-1]) {
		return e, false, fmt.Errorf("the evaluator does not model ranges of %s", set.Key)
	}
	k, err := s.evaluate(c)
	if err != nil {
		return e, false, err
	}
	if len(k.data) != set.Key.Len() {
		return e, false, fmt.Errorf("%s is looked up by %d bytes, want %d", name, len(k.data), set.Key.Len())
	}
	if k.unknown != "" {
		return e, false, s.lookupUnknown(set, k)
	}
	e, found = s.find(set, k)
	if found {
		s.elements = append(s.elements, set.FormatElement(e))
	}
	return e, found, nil
}

// ordered reports whether the bytes of an expression's values are in the order of the values.
func ordered(e nft.Expr) bool {
	switch e {
	case nft.IPSaddr, nft.IPDaddr, nft.IP6Saddr, nft.IP6Daddr, nft.ThSport, nft.ThDport, nft.MetaL4proto:
		return true
	}
	return false
}

func (s *statements) find(set *nft.Set, k key) (nft.Element, bool) {
	if e, ok := s.addedElement(set, k.data); ok {
		return e, true
	}
	if !set.Interval {
		return set.Element(k.data)
	}
	// Ranges do not overlap, so only the last one that starts at the key or before it can have the key.
	ranges := s.ranges[set]
	i, exact := slices.BinarySearchFunc(ranges, k.data, func(e nft.Element, d nft.Data) int { return cmp.Compare(e.Key, d) })
	if !exact {
		i--
	}
	if i < 0 || !k.isIn(ranges[i]) {
		return nft.Element{}, false
	}
	return ranges[i], true
}

// isIn reports whether an element may have the key: each known part must be in the element's range for that part, which
// is a single value for all parts but the last.
func (k key) isIn(e nft.Element) bool {
	end := e.KeyEnd
	if end == "" {
		end = e.Key
	}
	if len(e.Key) != len(k.data) || len(end) != len(k.data) {
		return false
	}
	from := 0
	for _, h := range append(k.holes, hole{len(k.data), len(k.data)}) {
		if part := k.data[from:h.from]; part < e.Key[from:h.from] || part > end[from:h.from] {
			return false
		}
		from = h.to
	}
	return true
}

// lookupUnknown is a lookup by a key of which parts are not known. It is an error if an element may have the key.
func (s *statements) lookupUnknown(set *nft.Set, k key) error {
	if slices.ContainsFunc(append(s.addedElements(set), set.Elements()...), k.isIn) {
		return errors.New(k.unknown)
	}
	return nil
}

// jenkinsHash is the kernel's jhash() of a key with a seed: Bob Jenkins' lookup3, as in include/linux/jhash.h. It reads
// words in the byte order of the machine, and the last twelve bytes in little-endian order.
func jenkinsHash(key []byte, seed uint32) uint32 {
	start := 0xdeadbeef + uint32(len(key)) + seed
	h := jenkins{start, start, start}
	for len(key) > 12 {
		h.add(key[:12], binary.NativeEndian)
		h.mix()
		key = key[12:]
	}
	if len(key) == 0 {
		return h[2]
	}
	var last [12]byte
	copy(last[:], key)
	h.add(last[:], binary.LittleEndian)
	h.final()
	return h[2]
}

// jenkins is the state of the hash.
type jenkins [3]uint32

func (h *jenkins) add(b []byte, order binary.ByteOrder) {
	for i := range h {
		h[i] += order.Uint32(b[4*i:])
	}
}

func (h *jenkins) mix() {
	a, b, c := h[0], h[1], h[2]
	for _, shift := range [...][3]int{{4, 6, 8}, {16, 19, 4}} {
		a = a - c ^ bits.RotateLeft32(c, shift[0])
		c += b
		b = b - a ^ bits.RotateLeft32(a, shift[1])
		a += c
		c = c - b ^ bits.RotateLeft32(b, shift[2])
		b += a
	}
	*h = jenkins{a, b, c}
}

func (h *jenkins) final() {
	a, b, c := h[0], h[1], h[2]
	c = c ^ b - bits.RotateLeft32(b, 14)
	a = a ^ c - bits.RotateLeft32(c, 11)
	b = b ^ a - bits.RotateLeft32(a, 25)
	c = c ^ b - bits.RotateLeft32(b, 16)
	a = a ^ c - bits.RotateLeft32(c, 4)
	b = b ^ a - bits.RotateLeft32(a, 14)
	c = c ^ b - bits.RotateLeft32(b, 24)
	*h = jenkins{a, b, c}
}

// slot scales a hash to a number below mod, as reciprocal_scale() does.
func slot(hash, mod uint32) uint32 { return uint32(uint64(hash) * uint64(mod) >> 32) }
