package leftovers

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
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

func FuzzRule(f *testing.F) {
	f.Add(attributes(func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_CHAIN, "PREROUTING")
		e.Uint64(unix.NFTA_RULE_HANDLE, 7)
		nest := func(e *netlink.AttributeEncoder, typ uint16, inner func(*netlink.AttributeEncoder)) {
			e.Nested(typ, func(e *netlink.AttributeEncoder) error { inner(e); return nil })
		}
		nest(e, unix.NFTA_RULE_EXPRESSIONS, func(e *netlink.AttributeEncoder) {
			nest(e, unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) {
				e.String(unix.NFTA_EXPR_NAME, "immediate")
				nest(e, unix.NFTA_EXPR_DATA, func(e *netlink.AttributeEncoder) {
					nest(e, unix.NFTA_IMMEDIATE_DATA, func(e *netlink.AttributeEncoder) {
						nest(e, unix.NFTA_DATA_VERDICT, func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_VERDICT_CHAIN, "KUBE-SERVICES") })
					})
				})
			})
		})
	}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := decodeRule(data); err == nil && len(r.to)+len(r.chain) > len(data) {
			t.Errorf("%d bytes are the rule %+v", len(data), r)
		}
	})
}
