package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// errShort is a message too short to hold what it must.
var errShort = errors.New("message is too short")

// nfgenmsgLen is the length of the header before the attributes of every nf_tables message.
const nfgenmsgLen = 4

// decodeAttributes calls f for each attribute of a message with its type and payload.
func decodeAttributes(data []byte, f func(typ uint16, b []byte) error) error {
	if len(data) < nfgenmsgLen {
		return errShort
	}
	return eachAttribute(data[nfgenmsgLen:], f)
}

// eachAttribute walks a list of netlink attributes without copying them.
func eachAttribute(b []byte, f func(typ uint16, b []byte) error) error {
	for len(b) >= attrHeader {
		length := int(binary.NativeEndian.Uint16(b))
		if length < attrHeader || length > len(b) {
			return fmt.Errorf("attribute of %d bytes in %d: %w", length, len(b), errShort)
		}
		typ := binary.NativeEndian.Uint16(b[2:]) & attrTypeMask
		if err := f(typ, b[attrHeader:length]); err != nil {
			return err
		}
		b = b[min(padded(length), len(b)):]
	}
	return nil
}

func cString(b []byte) string { return string(cBytes(b)) }

// cBytes takes the NULs off the end.
func cBytes(b []byte) []byte { return bytes.TrimRight(b, "\x00") }

func be32(b []byte) (uint32, error) {
	if len(b) != 4 {
		return 0, fmt.Errorf("number of %d bytes: %w", len(b), errShort)
	}
	return binary.BigEndian.Uint32(b), nil
}

// decodeTable decodes an NFT_MSG_NEWTABLE message; the table has no chains and sets yet.
func decodeTable(data []byte) (*Table, error) {
	t := &Table{}
	err := decodeAttributes(data, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_TABLE_NAME:
			t.Name = cString(b)
		case unix.NFTA_TABLE_FLAGS:
			flags, err := be32(b)
			t.setFlags(flags)
			return err
		case nftaTableOwner:
			port, err := be32(b)
			t.OwnerPort = port
			return err
		case nftaTableUserdata:
			t.Comment = udataComment(b, udataTableComment)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	t.Family = Family(data[0])
	return t, nil
}

func udataComment(b []byte, want byte) (comment string) {
	eachUdata(b, func(typ byte, value []byte) {
		if typ == want {
			comment = cString(value)
		}
	})
	return comment
}

// decodeChain decodes an NFT_MSG_NEWCHAIN message and returns the table's name too.
func decodeChain(data []byte) (table string, c *Chain, err error) {
	c = &Chain{}
	err = decodeAttributes(data, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_CHAIN_TABLE:
			table = cString(b)
		case unix.NFTA_CHAIN_NAME:
			c.Name = cString(b)
		case unix.NFTA_CHAIN_TYPE:
			c.Type = ChainType(cString(b))
		case unix.NFTA_CHAIN_HOOK:
			return eachAttribute(b, c.decodeHook)
		case unix.NFTA_CHAIN_POLICY:
			policy, err := be32(b)
			c.DropPolicy = policy == nfDrop
			return err
		case nftaChainFlags:
			flags, err := be32(b)
			c.bound = flags&chainBinding != 0
			return err
		case nftaChainUserdata:
			c.Comment = udataComment(b, udataChainComment)
		}
		return nil
	})
	if err != nil {
		return "", nil, fmt.Errorf("chain: %w", err)
	}
	return table, c, nil
}

// NFTA_CHAIN_FLAGS and NFT_CHAIN_BINDING (kernel 5.9).
const (
	nftaChainFlags = 10
	chainBinding   = 4
)

func (c *Chain) decodeHook(typ uint16, b []byte) error {
	v, err := be32(b)
	if err != nil {
		return nil // a device name or list: not of the families here
	}
	switch typ {
	case unix.NFTA_HOOK_HOOKNUM:
		c.Hook = Hook(fmt.Sprintf("hook-%d", v)) // not of the families here
		if int(v) < len(hookNumbers) {
			c.Hook = hookNumbers[v]
		}
	case unix.NFTA_HOOK_PRIORITY:
		c.Priority = int32(v)
	}
	return nil
}

// decodeSet decodes an NFT_MSG_NEWSET message, without elements. Anonymous sets, sets
// with flags that this package does not write, and sets without a readable
// description are not misread: their key or data type is opaque.
func decodeSet(data []byte) (table string, s *Set, err error) {
	s = &Set{kernelCount: -1}
	var flags, keyLen, dataLen, dataType, size uint32
	var userdata []byte
	plain := true
	err = decodeAttributes(data, func(typ uint16, b []byte) (err error) {
		switch typ {
		case unix.NFTA_SET_TABLE:
			table = cString(b)
		case unix.NFTA_SET_NAME:
			s.Name = cString(b)
		case unix.NFTA_SET_FLAGS:
			flags, err = be32(b)
		case unix.NFTA_SET_KEY_LEN:
			keyLen, err = be32(b)
		case unix.NFTA_SET_DATA_TYPE:
			dataType, err = be32(b)
		case unix.NFTA_SET_DATA_LEN:
			dataLen, err = be32(b)
		case unix.NFTA_SET_DESC:
			size, err = setSize(b)
		case unix.NFTA_SET_USERDATA:
			userdata = b
		case nftaSetCount:
			count, err := be32(b)
			s.kernelCount = int(count)
			return err
		case unix.NFTA_SET_TIMEOUT, unix.NFTA_SET_GC_INTERVAL, nftaSetExpr, nftaSetExpressions:
			plain = false
		}
		return err
	})
	if err != nil {
		return "", nil, fmt.Errorf("set: %w", err)
	}
	s.decodeUserdata(userdata)
	s.anonymous = flags&unix.NFT_SET_ANONYMOUS != 0
	plain = s.decodeFlags(flags, size) && plain
	if s.Key == nil || s.Key.keyLen() != int(keyLen) || !plain {
		s.Key = opaque(keyLen)
	}
	s.Verdicts = flags&unix.NFT_SET_MAP != 0 && dataType == verdictType
	switch {
	case s.Verdicts || flags&unix.NFT_SET_MAP == 0:
		s.Data = nil
	case s.Data == nil || s.Data.keyLen() != int(dataLen):
		s.Data = opaque(dataLen)
	}
	return table, s, nil
}

// NFTA_SET_EXPR (kernel 5.7), NFTA_SET_EXPRESSIONS (kernel 5.11) and NFTA_SET_COUNT (kernel 6.15).
const (
	nftaSetExpr        = 17
	nftaSetExpressions = 18
	nftaSetCount       = 20
)

// decodeFlags reports whether the flags are ones that this package writes.
func (s *Set) decodeFlags(flags, size uint32) bool {
	s.Size = size
	switch flags &^ unix.NFT_SET_MAP {
	case 0:
		return true
	case intervalFlags:
		s.Interval = true
		return true
	case dynamicFlags:
		s.Dynamic = true
		return true
	}
	return false
}

// setSize returns the size in a set's description; 0 for none.
func setSize(desc []byte) (size uint32, err error) {
	err = eachAttribute(desc, func(typ uint16, b []byte) (err error) {
		if typ == unix.NFTA_SET_DESC_SIZE {
			size, err = be32(b)
		}
		return err
	})
	return size, err
}

func (s *Set) decodeUserdata(b []byte) {
	eachUdata(b, func(typ byte, value []byte) {
		switch typ {
		case udataSetKeyTypeof:
			s.Key = decodeTypeof(value)
		case udataSetDataTypeof:
			s.Data = decodeTypeof(value)
		case udataSetComment:
			s.Comment = cString(value)
		}
	})
}

// decodeTypeof reads a typeof description by comparing it with those that this package
// writes; nil if it is none of them.
func decodeTypeof(b []byte) Concat {
	var kind uint32
	var body []byte
	eachUdata(b, func(typ byte, value []byte) {
		switch {
		case typ == 0 && len(value) == 4:
			kind = binary.NativeEndian.Uint32(value)
		case typ == 1:
			body = value
		}
	})
	if kind != udataConcat {
		if e := decodeTypeofOne(b, kind, body); e != nil {
			return Concat{e}
		}
		return nil
	}
	var c Concat
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

func decodeTypeofOne(b []byte, kind uint32, body []byte) Expr {
	if kind == udataNumgen {
		n := Numgen{}
		eachUdata(body, func(typ byte, value []byte) {
			if typ == 1 && len(value) == 4 {
				n.Mod = binary.NativeEndian.Uint32(value)
			}
		})
		if string(n.typeof(nil)) != string(b) {
			return nil
		}
		return n
	}
	for f := Field(1); int(f) < len(fields); f++ {
		if fields[f].kind != 0 && string(f.typeof(nil)) == string(b) {
			return f
		}
	}
	return nil
}

// opaque is a type of the given length about which nothing else is known.
func opaque(length uint32) Concat { return Concat{opaqueType(length)} }

// isOpaque reports whether the set is of a kind that this package does not write.
func (s *Set) isOpaque() bool {
	_, ok := s.Key[0].(opaqueType)
	return ok
}

type opaqueType uint32

func (o opaqueType) String() string { return fmt.Sprintf("opaque-%d-bytes", uint32(o)) }
func (o opaqueType) dataType() dataType {
	return dataType{name: o.String(), length: int(o), format: func(b string) string { return fmt.Sprintf("0x%x", b) }}
}
func (o opaqueType) loadVia(uint32, uint32) []expr.Any { return nil }
func (o opaqueType) typeof(b []byte) []byte            { return b }

// decodedRule is a rule as it came from the kernel, before its lookups are resolved.
type decodedRule struct {
	table, chain string
	exprs        []any
	comment      string
}

// decodeRule decodes an NFT_MSG_NEWRULE message.
func decodeRule(data []byte) (r decodedRule, err error) {
	err = decodeAttributes(data, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_RULE_TABLE:
			r.table = cString(b)
		case unix.NFTA_RULE_CHAIN:
			r.chain = cString(b)
		case unix.NFTA_RULE_USERDATA:
			r.comment = udataComment(b, udataRuleComment)
		case unix.NFTA_RULE_EXPRESSIONS:
			return eachAttribute(b, func(_ uint16, b []byte) error {
				e, err := decodeExpr(data[0], b)
				r.exprs = append(r.exprs, e)
				return err
			})
		}
		return nil
	})
	if err != nil {
		return decodedRule{}, fmt.Errorf("rule: %w", err)
	}
	return r, nil
}

// decodeExpr decodes one expression of a rule with google/nftables, or as unknownExpr.
func decodeExpr(family byte, b []byte) (any, error) {
	var name string
	var data []byte
	err := eachAttribute(b, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_EXPR_NAME:
			name = cString(b)
		case unix.NFTA_EXPR_DATA:
			data = b
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if name == "byteorder" {
		if e, err := decodeByteorder(data); err == nil {
			return e, nil
		}
		return unknownExpr(name), nil
	}
	e := newExpr(name)
	if e == nil || name == "immediate" && !isVerdict(data) {
		return unknownExpr(name), nil
	}
	// An expression that cannot be decoded is not one of ours. That must not keep the table from being read.
	if err := unmarshalExpr(family, data, e); err != nil {
		return unknownExpr(name), nil
	}
	return e, nil
}

// isVerdict tells an immediate that is a verdict from one that loads data, which the decoder
// would take for "drop".
func isVerdict(immediate []byte) bool {
	verdict := false
	_ = eachAttribute(immediate, func(typ uint16, b []byte) error {
		if typ == unix.NFTA_IMMEDIATE_DREG {
			register, err := be32(b)
			verdict = err == nil && register == unix.NFT_REG_VERDICT
		}
		return nil
	})
	return verdict
}

// byteorderExpr swaps the bytes of a register; google/nftables cannot decode it.
type byteorderExpr struct {
	source, dest uint32
}

func decodeByteorder(data []byte) (e byteorderExpr, err error) {
	err = eachAttribute(data, func(typ uint16, b []byte) (err error) {
		switch typ {
		case unix.NFTA_BYTEORDER_SREG:
			e.source, err = be32(b)
		case unix.NFTA_BYTEORDER_DREG:
			e.dest, err = be32(b)
		}
		return err
	})
	return e, err
}

// unmarshalExpr turns a panic of the decoder on malformed input into an error: what
// the bytes hold comes from outside.
func unmarshalExpr(family byte, data []byte, e expr.Any) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("malformed: %v", r)
		}
	}()
	return expr.Unmarshal(family, data, e)
}

func newExpr(name string) expr.Any {
	switch name {
	case "payload":
		return &expr.Payload{}
	case "meta":
		return &expr.Meta{}
	case "ct":
		return &expr.Ct{}
	case "fib":
		return &expr.Fib{}
	case "numgen":
		return &expr.Numgen{}
	case "hash":
		return &expr.Hash{}
	case "bitwise":
		return &expr.Bitwise{}
	case "cmp":
		return &expr.Cmp{}
	case "lookup":
		return &expr.Lookup{}
	case "nat":
		return &expr.NAT{}
	case "dynset":
		return &expr.Dynset{}
	case "masq":
		return &expr.Masq{}
	case "reject":
		return &expr.Reject{}
	case "counter":
		return &expr.Counter{}
	case "immediate":
		return &expr.Verdict{}
	}
	return nil
}
