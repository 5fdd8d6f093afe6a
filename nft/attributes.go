package nft

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// attributes builds netlink attributes in place. Element lists are the hot path of a sync,
// and building them through mdlayher/netlink's AttributeEncoder costs an allocation or
// more for each nesting level of each element: BenchmarkEncodeElements has both.
type attributes []byte

const (
	attrHeader = 4
	// attrTypeMask takes the nesting and byte-order flags off an attribute type.
	attrTypeMask = 1<<14 - 1
)

func (a *attributes) header(typ uint16, length int) {
	*a = binary.NativeEndian.AppendUint16(*a, uint16(attrHeader+length))
	*a = binary.NativeEndian.AppendUint16(*a, typ)
}

func (a *attributes) pad() {
	for len(*a)%4 != 0 {
		*a = append(*a, 0)
	}
}

// str adds a NUL-terminated string.
func (a *attributes) str(typ uint16, s string) {
	a.header(typ, len(s)+1)
	*a = append(*a, s...)
	*a = append(*a, 0)
	a.pad()
}

// bytes adds raw data.
func (a *attributes) bytes(typ uint16, b string) {
	a.header(typ, len(b))
	*a = append(*a, b...)
	a.pad()
}

// u32 adds a big-endian number: nf_tables takes all its numbers in network order.
func (a *attributes) u32(typ uint16, v uint32) {
	a.header(typ, 4)
	*a = binary.BigEndian.AppendUint32(*a, v)
}

// milliseconds adds a time as nf_tables takes it.
func (a *attributes) milliseconds(typ uint16, d time.Duration) {
	a.header(typ, 8)
	*a = binary.BigEndian.AppendUint64(*a, uint64(d.Milliseconds()))
}

// begin opens a nested attribute; end closes it.
func (a *attributes) begin(typ uint16) int {
	at := len(*a)
	a.header(typ|unix.NLA_F_NESTED, 0)
	return at
}

func (a *attributes) end(at int) {
	binary.NativeEndian.PutUint16((*a)[at:], uint16(len(*a)-at))
}

// appendUdataU32 appends one item of nft's userdata, which is a list of (type, length,
// value) with a byte each for type and length and no padding. Numbers are host-endian.
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
	udataTableComment   = 0
	udataChainComment   = 0
	udataRuleComment    = 0
	udataElementComment = 0

	udataSetKeyByteOrder  = 0
	udataSetDataByteOrder = 1
	udataSetMerge         = 2
	udataSetKeyTypeof     = 3
	udataSetDataTypeof    = 4
	udataSetExpr          = 5
	udataSetDataInterval  = 6
	udataSetComment       = 7
)
