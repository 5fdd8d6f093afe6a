package leftovers

import (
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

func decodeChain(f family, data []byte) (chain, error) {
	c := chain{family: f}
	return c, eachAttribute(data, func(d *netlink.AttributeDecoder) error {
		switch d.Type() {
		case unix.NFTA_CHAIN_TABLE:
			c.table = d.String()
		case unix.NFTA_CHAIN_NAME:
			c.name = d.String()
		case unix.NFTA_CHAIN_HOOK:
			c.base = true
		}
		return nil
	})
}

func decodeRule(data []byte) (r rule, err error) {
	err = eachAttribute(data, func(d *netlink.AttributeDecoder) error {
		switch d.Type() {
		case unix.NFTA_RULE_CHAIN:
			r.chain = d.String()
		case unix.NFTA_RULE_HANDLE:
			r.handle = d.Uint64()
		case unix.NFTA_RULE_EXPRESSIONS:
			nested(d, func(expression *netlink.AttributeDecoder) error {
				if to := verdictChain(expression); to != "" {
					r.to = to
				}
				return nil
			})
		}
		return nil
	})
	return r, err
}

func nested(d *netlink.AttributeDecoder, visit func(*netlink.AttributeDecoder) error) {
	d.Nested(func(inner *netlink.AttributeDecoder) error { return visitAll(inner, visit) })
}

// verdictChain returns the chain that an expression of a rule jumps or goes to; "" if it does neither.
// Only the expression immediate does. The kernel writes an expression's name before its data.
func verdictChain(expression *netlink.AttributeDecoder) (to string) {
	immediate := false
	nested(expression, func(d *netlink.AttributeDecoder) error {
		switch {
		case d.Type() == unix.NFTA_EXPR_NAME:
			immediate = d.String() == "immediate"
		case d.Type() == unix.NFTA_EXPR_DATA && immediate:
			to = within(d, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN)
		}
		return nil
	})
	return to
}

// within returns the text that stands behind a path of attributes; "" if there is none.
func within(d *netlink.AttributeDecoder, path ...uint16) (text string) {
	nested(d, func(inner *netlink.AttributeDecoder) error {
		switch {
		case inner.Type() != path[0]:
		case len(path) == 1:
			text = inner.String()
		default:
			text = within(inner, path[1:]...)
		}
		return nil
	})
	return text
}
