package nft

import (
	"bytes"
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
		expressions, err := r.linearize()
		if err == nil {
			err = encodeExpressions(&a, s.Table.Family, expressions)
		}
		if err != nil {
			return fmt.Errorf("nft: rule %d of chain %s %s %s: %w", i+1, s.Table.Family, s.Table.Name, s.Chain.Name, err)
		}
		if r.Comment != "" {
			a.Bytes(unix.NFTA_RULE_USERDATA, appendUdataString(nil, udataComment, r.Comment))
		}
		e.message(s, unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, a).rule = i
	}
	return nil
}

// encodeExpressions appends the kernel's expressions of a rule. Rules are few, so google/nftables encodes them.
func encodeExpressions(a *netlinkattr.List, family Family, expressions []expr.Any) error {
	nest := a.Begin(unix.NFTA_RULE_EXPRESSIONS)
	for _, x := range expressions {
		b, err := expr.Marshal(uint8(family), x)
		if err != nil {
			return err
		}
		a.Bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)
	}
	a.End(nest)
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
	family := Family(data[0])
	var userdata, expressions []byte
	err = decodeAttributes(data, variables{
		unix.NFTA_RULE_CHAIN: &r.chain, unix.NFTA_RULE_HANDLE: &r.handle,
		unix.NFTA_RULE_USERDATA: &userdata, unix.NFTA_RULE_EXPRESSIONS: &expressions,
	}.Take)
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

// rule returns the rule with its lookups resolved.
func (r decodedRule) rule(family Family, sets func(string) *Set) Rule {
	rule := delinearize(family, sets, r.exprs)
	rule.Comment = cmp.Or(r.comment, rule.Comment)
	return rule
}

// decodeExpr decodes one expression of a rule with google/nftables: a pointer to a type of its package expr. An expression that
// cannot be decoded is another program's, and becomes Unknown: the table must be readable nevertheless.
func decodeExpr(family Family, b []byte) any {
	var name string
	var data, info []byte
	malformed := netlinkattr.Each(b, variables{unix.NFTA_EXPR_NAME: &name, unix.NFTA_EXPR_DATA: &data}.Take)
	newExpr := exprTypes[name]
	switch {
	case name == "match" || name == "target":
		newExpr = nil
		// The attributes of matches and targets have the same numbers.
		x := Extension{Target: name == "target"}
		if err := netlinkattr.Each(data, variables{unix.NFTA_MATCH_NAME: &x.Name, unix.NFTA_MATCH_REV: &x.Revision, unix.NFTA_MATCH_INFO: &info}.Take); malformed == nil && err == nil {
			x.Info = string(info)
			return x
		}
	case name == "byteorder":
		newExpr = nil
		if e, err := decodeByteorder(data); malformed == nil && err == nil {
			return e
		}
	case name == "immediate" && !isVerdict(data):
		newExpr = func() expr.Any { return &expr.Immediate{} }
	case name == "bitwise" && bytes.ContainsFunc(netlinkattr.Find(data, bitwiseOp), func(r rune) bool { return r != 0 }):
		newExpr = nil // a shift, or between registers
	}
	if malformed == nil && newExpr != nil {
		e := newExpr()
		if unmarshalExpr(family, data, e) == nil && !leavesOut(e, data) {
			return e
		}
	}
	return Unknown{name}
}

// leavesOut reports whether google/nftables has decoded a part of the expression only.
func leavesOut(e expr.Any, data []byte) bool {
	dynset, is := e.(*expr.Dynset)
	const expressions = 10 // NFTA_DYNSET_EXPRESSIONS
	return is && len(dynset.Exprs) == 0 && (netlinkattr.Find(data, unix.NFTA_DYNSET_EXPR) != nil || netlinkattr.Find(data, expressions) != nil)
}

// bitwiseOp is NFTA_BITWISE_OP. 0 is "register & mask ^ xor".
const bitwiseOp = 6

// isVerdict reports whether an immediate is a verdict. The decoder would read one that loads data as "drop".
func isVerdict(immediate []byte) bool {
	register, err := netlinkattr.Uint32(netlinkattr.Find(immediate, unix.NFTA_IMMEDIATE_DREG))
	return err == nil && register == unix.NFT_REG_VERDICT
}

// decodeByteorder decodes what google/nftables cannot.
func decodeByteorder(data []byte) (*expr.Byteorder, error) {
	var e expr.Byteorder
	var op uint32
	err := netlinkattr.Each(data, variables{
		unix.NFTA_BYTEORDER_SREG: &e.SourceRegister, unix.NFTA_BYTEORDER_DREG: &e.DestRegister,
		unix.NFTA_BYTEORDER_OP: &op, unix.NFTA_BYTEORDER_LEN: &e.Len, unix.NFTA_BYTEORDER_SIZE: &e.Size,
	}.Take)
	e.Op = expr.ByteorderOp(op)
	return &e, err
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

	// Only rules of other programs have these.
	"range":        func() expr.Any { return &expr.Range{} },
	"limit":        func() expr.Any { return &expr.Limit{} },
	"log":          func() expr.Any { return &expr.Log{} },
	"objref":       func() expr.Any { return &expr.Objref{} },
	"redir":        func() expr.Any { return &expr.Redir{} },
	"flow_offload": func() expr.Any { return &expr.FlowOffload{} },
}
