package nft

import (
	"cmp"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

func (e *encoder) addRules(s Step) error {
	for i, r := range s.Chain.Rules {
		a := start(s.Table.Family, s.Table.Name, 512)
		a.Text(unix.NFTA_RULE_CHAIN, s.Chain.Name)
		nest := a.Begin(unix.NFTA_RULE_EXPRESSIONS)
		if err := encodeExpressions(&a, s.Table.Family, r); err != nil {
			return fmt.Errorf("nft: rule %d of chain %s %s %s: %w", i+1, s.Table.Family, s.Table.Name, s.Chain.Name, err)
		}
		a.End(nest)
		if r.Comment != "" {
			a.Bytes(unix.NFTA_RULE_USERDATA, appendUdataString(nil, udataComment, r.Comment))
		}
		e.message(s, unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, a).rule = i
	}
	return nil
}

// encodeExpressions appends the kernel's expressions of a rule. Rules are few, so google/nftables encodes them.
func encodeExpressions(a *netlinkattr.List, family Family, r Rule) error {
	expressions, err := r.linearize()
	if err != nil {
		return err
	}
	for _, x := range expressions {
		b, err := expr.Marshal(uint8(family), x)
		if err != nil {
			return err
		}
		a.Bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)
	}
	return nil
}

// decodedRule is a rule as it came from the kernel, before its lookups are resolved.
type decodedRule struct {
	chain   string
	exprs   []any
	comment string
	handle  uint64
}

func decodeRule(data []byte) (r decodedRule, err error) {
	if len(data) < nfgenmsgLen {
		return r, netlinkattr.ErrShort
	}
	family, err := familyOf(uint32(data[0]))
	if err != nil {
		return r, err
	}
	var userdata, expressions []byte
	err = decodeAttributes(data, variables{
		unix.NFTA_RULE_CHAIN: &r.chain, unix.NFTA_RULE_HANDLE: &r.handle,
		unix.NFTA_RULE_USERDATA: &userdata, unix.NFTA_RULE_EXPRESSIONS: &expressions,
	}.take)
	if err != nil {
		return r, err
	}
	r.comment = string(commentIn(userdata))
	err = netlinkattr.Each(expressions, func(_ uint16, b []byte) error {
		r.exprs = append(r.exprs, decodeExpr(family, b))
		return nil
	})
	return r, err
}

// decodeExpr decodes one expression of a rule with google/nftables. One that cannot be decoded is somebody else's, and
// becomes an unknownExpr: the table must be readable nevertheless.
func decodeExpr(family Family, b []byte) any {
	var name string
	var data []byte
	malformed := netlinkattr.Each(b, variables{unix.NFTA_EXPR_NAME: &name, unix.NFTA_EXPR_DATA: &data}.take)
	newExpr := exprTypes[name]
	switch {
	case malformed != nil:
	case name == "byteorder":
		if e, err := decodeByteorder(data); err == nil {
			return e
		}
	case name == "immediate" && family == FamilyIP6 && !isVerdict(data):
		if e := (&expr.Immediate{}); unmarshalExpr(family, data, e) == nil && len(e.Data) == hopLimitLength {
			return e
		}
	case newExpr != nil && (name != "immediate" || isVerdict(data)):
		e := newExpr()
		if unmarshalExpr(family, data, e) == nil {
			return e
		}
	}
	return unknownExpr(name)
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
	return expr.Unmarshal(uint8(family), data, e)
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
	"dup":       func() expr.Any { return &expr.Dup{} },
	"dynset":    func() expr.Any { return &expr.Dynset{} },
	"masq":      func() expr.Any { return &expr.Masq{} },
	"reject":    func() expr.Any { return &expr.Reject{} },
	"counter":   func() expr.Any { return &expr.Counter{} },
	"immediate": func() expr.Any { return &expr.Verdict{} },
}

// unknownExpr stands for an expression that the decoder has no type for.
type unknownExpr string
