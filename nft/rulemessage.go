package nft

import (
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
		b, err := expr.Marshal(family.nfproto(), x)
		if err != nil {
			return err
		}
		a.Bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)
	}
	return nil
}

// decodedRule is a rule as it came from the kernel, before its lookups are resolved.
type decodedRule struct {
	table, chain string
	exprs        []any
	comment      string
	handle       uint64
}

// decodeRule decodes an NFT_MSG_NEWRULE message.
func decodeRule(data []byte) (r decodedRule, err error) {
	if len(data) < nfgenmsgLen {
		return r, fmt.Errorf("rule: %w", netlinkattr.ErrShort)
	}
	family, err := familyOf(uint32(data[0]))
	if err != nil {
		return r, fmt.Errorf("rule: %w", err)
	}
	err = decodeAttributes(data, func(typ uint16, b []byte) error {
		switch typ {
		case attrTable:
			r.table = netlinkattr.Text(b)
		case unix.NFTA_RULE_CHAIN:
			r.chain = netlinkattr.Text(b)
		case unix.NFTA_RULE_HANDLE:
			r.handle, err = netlinkattr.Uint64(b)
			return err
		case unix.NFTA_RULE_USERDATA:
			r.comment = string(commentIn(b))
		case unix.NFTA_RULE_EXPRESSIONS:
			return netlinkattr.Each(b, func(_ uint16, b []byte) error {
				e, err := decodeExpr(family, b)
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

// ruleAdder returns a function that adds a rule that was read to its chain, with its handle. The sets and chains of the
// table must have been read.
func (t *Table) ruleAdder() func(decodedRule) {
	index := t.index()
	t.Kernel.Handles = map[string][]uint64{}
	find := func(name string) *Set { return index.sets[name] }
	return func(r decodedRule) {
		if chain := index.chains[r.chain]; chain != nil {
			t.Kernel.Handles[chain.Name] = append(t.Kernel.Handles[chain.Name], r.handle)
			chain.Rules = append(chain.Rules, Rule{Statements: delinearize(t.Family, find, r.exprs), Comment: r.comment})
		}
	}
}
