package nft

import (
	"cmp"
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
	newExpr := exprTypes[name]
	if newExpr == nil || name == "immediate" && !isVerdict(data) {
		return unknownExpr(name), nil
	}
	// An expression that cannot be decoded is somebody else's. The table must be readable nevertheless.
	e := newExpr()
	if err := unmarshalExpr(family, data, e); err != nil {
		return unknownExpr(name), nil
	}
	return e, nil
}

// isVerdict reports whether an immediate is a verdict. The decoder would read one that loads data as "drop".
func isVerdict(immediate []byte) bool {
	register, err := netlinkattr.Uint32(netlinkattr.Find(immediate, unix.NFTA_IMMEDIATE_DREG))
	return err == nil && register == unix.NFT_REG_VERDICT
}

// byteorderExpr swaps the bytes of a register; google/nftables cannot decode it.
type byteorderExpr struct {
	source, dest uint32
}

func decodeByteorder(data []byte) (byteorderExpr, error) {
	source, errSource := netlinkattr.Uint32(netlinkattr.Find(data, unix.NFTA_BYTEORDER_SREG))
	dest, errDest := netlinkattr.Uint32(netlinkattr.Find(data, unix.NFTA_BYTEORDER_DREG))
	return byteorderExpr{source, dest}, cmp.Or(errSource, errDest)
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

// exprTypes make the expressions that the decoder knows, by the kernel's names.
var exprTypes = map[string]func() expr.Any{
	"payload":   func() expr.Any { return &expr.Payload{} },
	"meta":      func() expr.Any { return &expr.Meta{} },
	"ct":        func() expr.Any { return &expr.Ct{} },
	"fib":       func() expr.Any { return &expr.Fib{} },
	"numgen":    func() expr.Any { return &expr.Numgen{} },
	"hash":      func() expr.Any { return &expr.Hash{} },
	"bitwise":   func() expr.Any { return &expr.Bitwise{} },
	"cmp":       func() expr.Any { return &expr.Cmp{} },
	"lookup":    func() expr.Any { return &expr.Lookup{} },
	"nat":       func() expr.Any { return &expr.NAT{} },
	"dynset":    func() expr.Any { return &expr.Dynset{} },
	"masq":      func() expr.Any { return &expr.Masq{} },
	"reject":    func() expr.Any { return &expr.Reject{} },
	"counter":   func() expr.Any { return &expr.Counter{} },
	"immediate": func() expr.Any { return &expr.Verdict{} },
}

// unknownExpr stands for an expression that the decoder has no type for.
type unknownExpr string
