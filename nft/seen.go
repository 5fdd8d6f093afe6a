package nft

import (
	"hash/maphash"
	"math/bits"
)

// seenKeys is the set of keys that a listing had. A key takes 11 to 22 bytes, whatever its length, because only a hash
// of 64 bits is kept. Once in 500 million checks of 250,000 elements, two keys have the same hash. That check does not
// look at the second element.
type seenKeys struct {
	seed  maphash.Seed
	slots []uint64 // open addressing; 0 is an empty slot
	n     int
}

// newSeenKeys returns a seenKeys with room for n keys. It grows when there are more.
func newSeenKeys(n int) *seenKeys {
	return &seenKeys{seed: maphash.MakeSeed(), slots: make([]uint64, slotsFor(n))}
}

// slotsFor is the power of two of which n is at most three quarters.
func slotsFor(n int) int { return 1 << bits.Len(uint(max(n, 8)*4/3)) }

// add reports whether the key is new.
func (s *seenKeys) add(key []byte) bool {
	hash := max(maphash.Bytes(s.seed, key), 1)
	at, found := s.find(hash)
	if found {
		return false
	}
	s.slots[at] = hash
	if s.n++; 4*s.n > 3*len(s.slots) {
		s.grow()
	}
	return true
}

func (s *seenKeys) has(key Data) bool {
	_, found := s.find(max(maphash.String(s.seed, string(key)), 1))
	return found
}

// find returns the slot that has the hash, or the empty one where it belongs.
func (s *seenKeys) find(hash uint64) (at int, found bool) {
	mask := len(s.slots) - 1
	for at = int(hash) & mask; s.slots[at] != 0; at = (at + 1) & mask {
		if s.slots[at] == hash {
			return at, true
		}
	}
	return at, false
}

func (s *seenKeys) grow() {
	old := s.slots
	s.slots = make([]uint64, 2*len(old))
	for _, hash := range old {
		if hash != 0 {
			at, _ := s.find(hash)
			s.slots[at] = hash
		}
	}
}
