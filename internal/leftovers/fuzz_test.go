package leftovers

import (
	"encoding/binary"
	"slices"
	"testing"
)

// entry makes an entry of a legacy table whose target has a name and data.
func entry(l entryLayout, target, data string) []byte {
	e := make([]byte, l.size+targetDataAt+32)
	binary.NativeEndian.PutUint16(e[l.targetOffset:], uint16(l.size))
	binary.NativeEndian.PutUint16(e[l.nextOffset:], uint16(len(e)))
	copy(e[l.size+targetNameAt:], target)
	copy(e[l.size+targetDataAt:], data)
	return e
}

func FuzzLegacyEntries(f *testing.F) {
	for _, family := range legacyFamilies {
		table := slices.Concat(entry(family.offsets, "", ""), entry(family.offsets, chainTarget, "KUBE-SERVICES"), entry(family.offsets, chainTarget, chainTarget))
		f.Add(table)
		f.Add(table[:len(table)-1])
	}
	f.Fuzz(func(t *testing.T, entries []byte) {
		for _, family := range legacyFamilies {
			names, err := family.offsets.chainNames(entries)
			if len(names) > len(entries)/family.offsets.size {
				t.Errorf("%d bytes have the chains %q, error %v", len(entries), names, err)
			}
		}
	})
}
