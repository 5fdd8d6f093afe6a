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
