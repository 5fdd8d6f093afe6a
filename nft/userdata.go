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
	udataSetMerge         = 2
	udataSetKeyTypeof     = 3
	udataSetDataTypeof    = 4
	udataSetExpr          = 5
	udataSetDataInterval  = 6
	udataSetComment       = 7
)

func appendNested(b []byte, typ byte, f func([]byte) []byte) []byte {
	at := len(b)
	b = f(append(b, typ, 0))
	b[at+1] = byte(len(b) - at - 2)
	return b
}

// commentIn returns the comment in the userdata of all but a set. It does not copy.
func commentIn(userdata []byte) (comment []byte) {
	eachUdata(userdata, func(typ byte, value []byte) {
		if typ == udataComment {
			comment = netlinkattr.TextBytes(value)
		}
	})
	return comment
}
