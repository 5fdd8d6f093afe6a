package netlinkattr

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// List is a list of attributes under construction. Its methods append to it.
type List []byte

func (l *List) header(typ uint16, length int) {
	*l = binary.NativeEndian.AppendUint16(*l, uint16(HeaderLen+length))
	*l = binary.NativeEndian.AppendUint16(*l, typ)
}

// Pad appends zeros up to a multiple of four bytes.
func (l *List) Pad() {
	for len(*l)%4 != 0 {
		*l = append(*l, 0)
	}
}

// Text appends a string, which gets a NUL at its end.
func (l *List) Text(typ uint16, s string) {
	l.header(typ, len(s)+1)
	*l = append(*l, s...)
	*l = append(*l, 0)
	l.Pad()
}

// Bytes appends a payload as it is.
func (l *List) Bytes(typ uint16, payload []byte) {
	l.header(typ, len(payload))
	*l = append(*l, payload...)
	l.Pad()
}

// ByteString is Bytes for a payload that is a string; no NUL is added.
func (l *List) ByteString(typ uint16, payload string) {
	l.header(typ, len(payload))
	*l = append(*l, payload...)
	l.Pad()
}

// Uint32 appends a number in network byte order.
func (l *List) Uint32(typ uint16, v uint32) {
	l.header(typ, 4)
	*l = binary.BigEndian.AppendUint32(*l, v)
}

// Uint64 appends a number in network byte order.
func (l *List) Uint64(typ uint16, v uint64) {
	l.header(typ, 8)
	*l = binary.BigEndian.AppendUint64(*l, v)
}

// Begin opens an attribute that holds a list. What is appended until End belongs to it. End takes what Begin returned.
func (l *List) Begin(typ uint16) (at int) { return l.BeginBytes(typ | unix.NLA_F_NESTED) }

// BeginBytes opens an attribute that holds bytes. The caller appends them, and closes it with End.
func (l *List) BeginBytes(typ uint16) (at int) {
	at = len(*l)
	l.header(typ, 0)
	return at
}

// End closes the attribute that Begin or BeginBytes opened at that place.
func (l *List) End(at int) {
	binary.NativeEndian.PutUint16((*l)[at:], uint16(len(*l)-at))
	l.Pad()
}
