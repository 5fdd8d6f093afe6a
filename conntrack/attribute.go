package conntrack

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

const (
	attributeHeader = 4
	nested          = unix.NLA_F_NESTED
	// typeMask takes the flags for nesting and byte order off an attribute's type.
	typeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
)

// appendAttribute appends a netlink attribute, padded.
func appendAttribute(b []byte, typ uint16, payload []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attributeHeader+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, payload...)
	return append(b, make([]byte, padding(len(payload)))...)
}

// padding is what brings n to a multiple of four.
func padding(n int) int { return -n & 3 }

// attributes walks the netlink attributes in b, up to the first that does not fit.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attributeHeader {
			n := int(binary.NativeEndian.Uint16(b))
			if n < attributeHeader || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&typeMask, b[attributeHeader:n]) {
				return
			}
			b = b[min(n+padding(n), len(b)):]
		}
	}
}
