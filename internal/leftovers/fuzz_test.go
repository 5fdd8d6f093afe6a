package leftovers

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// verdict makes the data of a standard target.
func verdict(v int) string { return string(binary.NativeEndian.AppendUint32(nil, uint32(int32(v)))) }

// smallTable has one base chain with a jump to kube-proxy's only chain, and one to somebody else's, which is behind it.
func smallTable(l entryLayout) []byte {
	size := len(entry(l, "", ""))
	return slices.Concat(
		entry(l, "", verdict(4*size)), entry(l, "", verdict(7*size)), entry(l, "", verdict(-2)), // base chain
		entry(l, chainTarget, "KUBE-SERVICES"), entry(l, "DNAT", "x"), entry(l, "", verdict(-5)),
		entry(l, chainTarget, "MINE"), entry(l, "", verdict(8*size)), entry(l, "", verdict(-5)),
		entry(l, chainTarget, chainTarget),
	)
}

// parsed returns a table with its base chain at the given offsets.
func parsed(f legacyFamily, entries []byte, first, last uint32) (*legacyTable, error) {
	t := &legacyTable{family: f, name: "nat", entries: slices.Clone(entries)}
	binary.NativeEndian.PutUint32(t.info[tableNameSize:], 1)
	binary.NativeEndian.PutUint32(t.info[infoHooksAt:], first)
	binary.NativeEndian.PutUint32(t.info[infoHooksAt+4*hooks:], last)
	return t, t.parse()
}

func nothing(*legacyRule) bool { return false }

func going(doomed map[string]bool) func(*legacyRule) bool {
	return func(r *legacyRule) bool { return r.goes(doomed) }
}

func TestLegacyTable(t *testing.T) {
	for _, f := range legacyFamilies {
		t.Run(f.family.String(), func(t *testing.T) {
			l := f.offsets
			size := len(entry(l, "", ""))
			table, err := parsed(f, smallTable(l), 0, uint32(2*size))
			if err != nil {
				t.Fatal(err)
			}
			kept, err := table.remove(going(map[string]bool{"KUBE-SERVICES": true}))
			if err != nil {
				t.Fatal(err)
			}
			want := slices.Concat(
				entry(l, "", verdict(3*size)), entry(l, "", verdict(-2)),
				entry(l, chainTarget, "MINE"), entry(l, "", verdict(4*size)), entry(l, "", verdict(-5)),
				entry(l, chainTarget, chainTarget),
			)
			if diff := cmp.Diff(want, table.entries); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]int{1, 2, 6, 7, 8, 9}, kept); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
			if last := binary.NativeEndian.Uint32(table.info[infoHooksAt+4*hooks:]); last != uint32(size) {
				t.Errorf("the base chain ends at %d, want %d", last, size)
			}
		})
	}
}

func FuzzLegacyEntries(f *testing.F) {
	for _, family := range legacyFamilies {
		table := smallTable(family.offsets)
		last := uint32(2 * len(entry(family.offsets, "", "")))
		f.Add(table, uint32(0), last)
		f.Add(table[:len(table)-1], uint32(0), last)
		f.Add(table, uint32(7), last)
	}
	f.Fuzz(func(t *testing.T, entries []byte, first, last uint32) {
		for _, family := range legacyFamilies {
			table, err := parsed(family, entries, first, last)
			if len(table.chains) > len(entries)/family.offsets.size {
				t.Errorf("%d bytes have the chains %q, error %v", len(entries), table.chains, err)
			}
			if err != nil {
				continue
			}
			var others Others
			others.addLegacy(table, ^uint32(0))
			if len(others.Uses) > min(len(table.rules), maxUses) {
				t.Errorf("%d rules have the uses %v", len(table.rules), others.Uses)
			}
			legacy := LegacyTable{Family: family.family, Name: "nat", read: table}
			_ = legacy.Table().String()
			if recording, err := legacy.Record(); err == nil {
				if _, err := recording.Other(); err != nil {
					t.Error(err)
				}
			}
			if _, err := table.remove(nothing); err == nil && !slices.Equal(table.entries, entries) {
				t.Error("removing nothing changed the entries")
			}
			doomed := table.doomed(false)
			count := len(table.rules)
			kept, err := table.remove(going(doomed))
			if err != nil {
				continue
			}
			left, err := parsed(family, table.entries, binary.NativeEndian.Uint32(table.info[infoHooksAt:]), binary.NativeEndian.Uint32(table.info[infoHooksAt+4*hooks:]))
			if err != nil || len(left.rules) != len(kept) || len(kept) > count {
				t.Errorf("%d of %d entries stay, %d are there, error %v", len(kept), count, len(left.rules), err)
			}
			for _, c := range left.chains {
				if doomed[c] {
					t.Errorf("chain %q is still there", c)
				}
			}
		}
	})
}
