package leftovers

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Tables of iptables-legacy are a list of entries, each a rule: a head, matches, and a target. A chain begins
// with an entry whose target is called ERROR and has the chain's name. So does the table's last entry: its name is ERROR too.
const (
	chainTarget = "ERROR"
	// In struct xt_entry_target the name is behind the length, and the data behind name and revision.
	targetNameAt, targetNameSize, targetDataAt = 2, 29, 32
)

// entryLayout says where in an entry (struct ipt_entry, struct ip6t_entry) the kernel has the two lengths.
type entryLayout struct{ targetOffset, nextOffset, size int }

func nativeUint16(b []byte) uint16 { return binary.NativeEndian.Uint16(b) }
func nativeUint32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// chainNames returns the names of the chains that users made in a table.
func (l entryLayout) chainNames(entries []byte) (names []string, err error) {
	for at := 0; at < len(entries); {
		entry := entries[at:]
		if len(entry) < l.size {
			return nil, fmt.Errorf("entry at %d of %d is cut off", at, len(entries))
		}
		target, next := int(nativeUint16(entry[l.targetOffset:])), int(nativeUint16(entry[l.nextOffset:]))
		if target < l.size || next < target+targetDataAt || next > len(entry) {
			return nil, fmt.Errorf("entry at %d of %d has its target at %d and the next entry at %d", at, len(entries), target, next)
		}
		if name := text(entry[target+targetNameAt:][:targetNameSize]); name == chainTarget {
			if chain := text(entry[target+targetDataAt : next]); chain != chainTarget {
				names = append(names, chain)
			}
		}
		at += next
	}
	return names, nil
}

// text returns what is before the first NUL.
func text(b []byte) string {
	before, _, _ := bytes.Cut(b, []byte{0})
	return string(before)
}
