package nft

import (
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// decodeExpr decodes one expression of a rule with google/nftables, or as unknownExpr.
func decodeExpr(family Family, b []byte) (any, error) {
	var name string
	var data []byte
	err := netlinkattr.Each(b, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_EXPR_NAME:
			name = netlinkattr.Text(b)
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
	// An expression that cannot be decoded is somebody else's. The table must be readable nevertheless.
	if err := unmarshalExpr(family, data, e); err != nil {
		return unknownExpr(name), nil
	}
	return e, nil
}

// isVerdict reports whether an immediate is a verdict. The decoder would read one that loads data as "drop".
func isVerdict(immediate []byte) bool {
	verdict := false
	_ = netlinkattr.Each(immediate, func(typ uint16, b []byte) error {
		if typ == unix.NFTA_IMMEDIATE_DREG {
			register, err := netlinkattr.Uint32(b)
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
	err = netlinkattr.Each(data, func(typ uint16, b []byte) (err error) {
		switch typ {
		case unix.NFTA_BYTEORDER_SREG:
			e.source, err = netlinkattr.Uint32(b)
		case unix.NFTA_BYTEORDER_DREG:
			e.dest, err = netlinkattr.Uint32(b)
		}
		return err
	})
	return e, err
}

// unmarshalExpr decodes an expression with google/nftables, which panics on some malformed input. It returns an error
// instead.
func unmarshalExpr(family Family, data []byte, e expr.Any) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("malformed: %v", r)
		}
	}()
	return expr.Unmarshal(family.nfproto(), data, e)
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

// unknownExpr stands for an expression that the decoder has no type for.
type unknownExpr string
