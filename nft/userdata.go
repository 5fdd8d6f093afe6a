package nft

import (
	"encoding/binary"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
)

// appendUdataU32 appends one item of nft's userdata: a list of (type, length, value) with one byte each for type and
// length, without padding. Numbers are in host byte order.
func appendUdataU32(b []byte, typ byte, v uint32) []byte {
	b = append(b, typ, 4)
	return binary.NativeEndian.AppendUint32(b, v)
}

func appendUdataString(b []byte, typ byte, s string) []byte {
	s = TruncateComment(s)
	b = append(b, typ, byte(len(s)+1))
	b = append(b, s...)
	return append(b, 0)
}

// eachUdata calls f for every item of nft's userdata and stops at the first malformed one.
func eachUdata(b []byte, f func(typ byte, value []byte)) {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		f(b[0], b[2:2+int(b[1])])
		b = b[2+int(b[1]):]
	}
}

// Types of userdata items (nft's libnftnl/udata.h).
const (
	udataComment = 0 // of all but sets

	udataSetKeyByteOrder  = 0
	udataSetDataByteOrder = 1
	udataSetKeyTypeof     = 3
	udataSetDataTypeof    = 4
	udataSetDataInterval  = 6
	udataSetComment       = 7
)

func appendNested(b []byte, typ byte, f func([]byte) []byte) []byte {
	at := len(b)
	b = f(append(b, typ, 0))
	b[at+1] = byte(len(b) - at - 2)
	return b
}

// udataItem returns the value of the last item of a type; nil if there is none.
func udataItem(b []byte, wanted byte) (value []byte) {
	eachUdata(b, func(typ byte, v []byte) {
		if typ == wanted {
			value = v
		}
	})
	return value
}

// commentIn returns the comment in the userdata of all but a set. It does not copy.
func commentIn(userdata []byte) []byte {
	return netlinkattr.TextBytes(udataItem(userdata, udataComment))
}

// typeofVerdict describes a verdict map's values: nft's expression kind 1, without data.
func typeofVerdict(b []byte) []byte {
	b = appendUdataU32(b, 0, 1)
	return append(b, 1, 0)
}

func (c Concat) byteOrder() uint32 {
	if len(c) == 1 {
		return c[0].dataType().order
	}
	return orderNone
}

func (c Concat) typeof(b []byte) []byte {
	if len(c) == 1 {
		return c[0].(typePart).typeof(b)
	}
	b = appendUdataU32(b, 0, udataConcat)
	return appendNested(b, 1, func(b []byte) []byte {
		for i, e := range c {
			b = appendNested(b, byte(i), e.(typePart).typeof)
		}
		return b
	})
}

// decodeTypeof reads a typeof description by comparing it with the descriptions that this package writes. It returns nil for
// any other description.
func decodeTypeof(b []byte) (c Concat) {
	body := udataItem(b, 1)
	if string(udataItem(b, 0)) != string(binary.NativeEndian.AppendUint32(nil, udataConcat)) {
		return decodeTypeofOne(b, body)
	}
	known := true
	eachUdata(body, func(_ byte, value []byte) {
		part := decodeTypeof(value)
		known = known && len(part) == 1
		c = append(c, part...)
	})
	if !known {
		return nil
	}
	return c
}

func decodeTypeofOne(b, body []byte) Concat {
	if mod := udataItem(body, 1); len(mod) == 4 {
		n := Numgen{Mod: binary.NativeEndian.Uint32(mod)}
		if string(n.typeof(nil)) == string(b) {
			return Concat{n}
		}
	}
	for f := Field(1); int(f) < len(fields); f++ {
		if fields[f].kind != 0 && string(f.typeof(nil)) == string(b) {
			return Concat{f}
		}
	}
	return nil
}
