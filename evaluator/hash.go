package evaluator

import (
	"encoding/binary"
	"math/bits"

	"github.com/nftproxy/nftproxy/nft"
)

// hash returns the slot that a JHash chooses.
func (s *statements) hash(h nft.JHash) value {
	k := s.evaluate(h.Fields())
	switch {
	case h.Mod == 0:
		return unknown(4, "there is no number below 0")
	case k.absent:
		return k
	case h.Field != s.walk.family.Saddr() && h.Field != s.walk.family.Daddr() || h.And != 0 && h.And != nft.ThSport:
		return unknown(4, "the evaluator hashes addresses, alone or with the source port")
	case !k.isKnown():
		return unknown(4, k.why)
	}
	return known(nft.IntegerData(slot(jenkinsHash(k.data, h.Seed), h.Mod) + h.Offset))
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
