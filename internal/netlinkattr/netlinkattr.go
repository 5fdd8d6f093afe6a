// Package netlinkattr reads and writes netlink attributes: a length and a type of 16 bits each, in the byte order of
// the machine, then a payload that is padded to a multiple of four bytes.
//
// It exists because lists of set elements are the hot path of a sync and of a check. AttributeEncoder and
// AttributeDecoder of mdlayher/netlink allocate for each level of nesting of each element; this package appends to one
// slice and reads without a copy. BenchmarkEncodeElements in package nft compares both.
package netlinkattr

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// HeaderLen is the length of an attribute before its payload.
const HeaderLen = 4

// typeMask takes the flags for nesting and byte order off an attribute's type.
const typeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// ErrShort says that something is shorter than what it has to hold.
var ErrShort = errors.New("message is too short")

// Padded is n rounded up to a multiple of four.
func Padded(n int) int { return (n + 3) &^ 3 }

// Each calls f for each attribute of a list, in order, with its type, without flags, and its payload, which is a part
// of list. It ends with the first error of f, and with ErrShort when an attribute is not whole. Fewer than four bytes
// at the end are passed over.
func Each(list []byte, f func(typ uint16, payload []byte) error) error {
	for len(list) >= HeaderLen {
		length := int(binary.NativeEndian.Uint16(list))
		if length < HeaderLen || length > len(list) {
			return fmt.Errorf("attribute of %d bytes in %d: %w", length, len(list), ErrShort)
		}
		typ := binary.NativeEndian.Uint16(list[2:]) & typeMask
		if err := f(typ, list[HeaderLen:length]); err != nil {
			return err
		}
		list = list[min(Padded(length), len(list)):]
	}
	return nil
}

// Variables receive the attributes of the types at which they stand: a *string, without NULs at its end; a *[]byte, which is
// not copied; or a *uint32 or *uint64, in network byte order.
type Variables map[uint16]any

// Take is a function for Each. Attributes of other types are passed over.
func (v Variables) Take(typ uint16, b []byte) (err error) {
	switch to := v[typ].(type) {
	case *string:
		*to = Text(b)
	case *[]byte:
		*to = b
	case *uint32:
		*to, err = Uint32(b)
	case *uint64:
		*to, err = Uint64(b)
	}
	return err
}

// Find returns the payload of the first attribute of a type; nil if there is none.
func Find(list []byte, wanted uint16) (payload []byte) {
	_ = Each(list, func(typ uint16, b []byte) error {
		if typ == wanted && payload == nil {
			payload = b
		}
		return nil
	})
	return payload
}

// Uint16 reads a number in network byte order.
func Uint16(payload []byte) (uint16, error) {
	if len(payload) != 2 {
		return 0, badNumber(payload)
	}
	return binary.BigEndian.Uint16(payload), nil
}

// Uint32 reads a number in network byte order.
func Uint32(payload []byte) (uint32, error) {
	if len(payload) != 4 {
		return 0, badNumber(payload)
	}
	return binary.BigEndian.Uint32(payload), nil
}

// Uint64 reads a number in network byte order.
func Uint64(payload []byte) (uint64, error) {
	if len(payload) != 8 {
		return 0, badNumber(payload)
	}
	return binary.BigEndian.Uint64(payload), nil
}

func badNumber(payload []byte) error {
	return fmt.Errorf("number of %d bytes: %w", len(payload), ErrShort)
}

// Text returns a string without the NULs at its end.
func Text(payload []byte) string { return string(TextBytes(payload)) }

// TextBytes is Text without a copy.
func TextBytes(payload []byte) []byte { return bytes.TrimRight(payload, "\x00") }

// At returns the payload of the attribute at an offset of a list, which may also be in its header or its padding, and
// the offset in that payload, which is negative in the header. ok is false if there is none.
func At(list []byte, offset int) (payload []byte, inside int, ok bool) {
	at := 0
	_ = Each(list, func(_ uint16, b []byte) error {
		if begin := at + HeaderLen; !ok && offset >= at && offset < begin+Padded(len(b)) {
			payload, inside, ok = b, offset-begin, true
		}
		at += HeaderLen + Padded(len(b))
		return nil
	})
	return payload, inside, ok
}

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
