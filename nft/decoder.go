package nft

import (
	"errors"
	"fmt"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// decoder builds a table from the messages that describe it: the table's own, then those of its
// parts, in which sets come before their elements.
type decoder struct {
	table *Table
	sets  map[string]*Set
	rules []decodedRule
}

func (d *decoder) take(m reply) (err error) {
	switch typ := m.kind(); {
	case len(m.Data) < nfgenmsgLen:
		return fmt.Errorf("message %d of %d bytes", typ, len(m.Data))
	case d.table == nil && typ != unix.NFT_MSG_NEWTABLE:
		return errors.New("a part comes before its table")
	case d.table == nil:
		d.table, err = decodeTable(m.Data)
	default:
		err = d.takePart(typ, m.Data)
	}
	return err
}

func (d *decoder) takePart(typ uint16, data []byte) error {
	switch typ {
	case unix.NFT_MSG_NEWSET:
		s, err := decodeSet(data)
		if err != nil || d.sets[s.Name] != nil {
			return err
		}
		if d.sets == nil {
			d.sets = map[string]*Set{}
		}
		d.sets[s.Name] = s
		d.table.Sets = append(d.table.Sets, s)
	case unix.NFT_MSG_NEWSETELEM:
		return d.takeElements(data)
	case unix.NFT_MSG_NEWOBJ, netlinkattr.MsgNewFlowtable:
		o, err := decodeObject(data, typ == netlinkattr.MsgNewFlowtable)
		d.table.Kernel.Objects = append(d.table.Kernel.Objects, o)
		return err
	case unix.NFT_MSG_NEWCHAIN:
		c, err := decodeChain(data)
		d.table.Chains = append(d.table.Chains, c)
		return err
	case unix.NFT_MSG_NEWRULE:
		rule, err := decodeRule(data)
		d.rules = append(d.rules, rule)
		return err
	}
	return nil
}

func (d *decoder) takeElements(data []byte) error {
	s := d.sets[elementsOf(data)]
	if s == nil {
		return errors.New("elements come before their set")
	}
	return eachElement(data, func(raw *rawElement) error {
		e := raw.element()
		if !s.isOpaque() && (e.Key != CatchAll && len(e.Key) != s.Key.Len() || len(e.Value) != s.Data.Len()) {
			return fmt.Errorf("an element of set %s is not %s", s.Name, s.typeText())
		}
		s.putRead(e, raw.unknownIn(s))
		return nil
	})
}

// finish returns the table. It adds the rules to their chains, because only now all sets and chains are known.
func (d *decoder) finish() *Table {
	t := d.table
	SortChains(t.Chains)
	index := t.index()
	t.Kernel.Handles = map[string][]uint64{}
	find := func(name string) *Set { return index.sets[name] }
	for _, r := range d.rules {
		if chain := index.chains[r.chain]; chain != nil {
			t.Kernel.Handles[chain.Name] = append(t.Kernel.Handles[chain.Name], r.handle)
			chain.Rules = append(chain.Rules, Rule{Statements: delinearize(t.Family, find, r.exprs), Comment: r.comment})
		}
	}
	return t
}

func elementsOf(data []byte) string {
	return netlinkattr.Text(netlinkattr.Find(data[nfgenmsgLen:], unix.NFTA_SET_ELEM_LIST_SET))
}
