package nft

import (
	"errors"
	"fmt"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Bounds of ReadOthers and RecordOthers.
const (
	maxOtherRules = 100_000 // of one table
	maxListedSets = 1_000   // of one table, to print their first elements
	// maxListedElement bounds the elements of an anonymous set that are printed.
	maxListedElement = 12
	// maxRecordedBytes bounds the messages of all tables together.
	maxRecordedBytes = 32 << 20
)

// MaxRecordedElements bounds the elements of a set that RecordOthers records. To list them takes time in proportion to
// the square of their number.
const MaxRecordedElements = 10_000

// leftOutError says why the contents of a table were left out.
type leftOutError string

func (e leftOutError) Error() string { return string(e) }

// decoder builds a table from the messages that describe it: first the message about the table, then the messages about its
// parts, sets before their elements.
type decoder struct {
	table  *Table
	sets   map[string]*Set
	chains map[string]*Chain
	// rules are the rules of an own table. They wait for finish, because their sets and chains may follow them.
	rules []decodedRule
	// count is the number of rules of another program's table.
	count int
	// other says that another program wrote the table. It may change while it is read.
	other bool
}

// begin begins a table with the message about it.
func (d *decoder) begin(data []byte) (err error) {
	if !d.other {
		d.table, err = decodeTable(data)
		return err
	}
	if d.table, err = decodeAnyTable(data); err == nil {
		d.table.Kernel.Other, d.table.Kernel.Handles, d.table.Kernel.Devices = true, map[string][]uint64{}, map[string][]string{}
	}
	return err
}

func (d *decoder) take(m reply) (err error) {
	switch typ := m.kind(); {
	case len(m.Data) < nfgenmsgLen:
		return fmt.Errorf("message %d of %d bytes", typ, len(m.Data))
	case d.table == nil && typ != unix.NFT_MSG_NEWTABLE:
		return errors.New("a part comes before its table")
	case d.table == nil:
		err = d.begin(m.Data)
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
		s.kernel.partial = d.other || s.Dynamic
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
		if err != nil || d.chains[c.Name] != nil {
			return err
		}
		if d.other && c.Hook != "" {
			c.Hook = d.table.Family.hook(c.Hook)
			if d.table.Kernel.Devices[c.Name], err = decodeDevices(data); err != nil {
				return err
			}
		}
		if d.chains == nil {
			d.chains = map[string]*Chain{}
		}
		d.chains[c.Name] = c
		d.table.Chains = append(d.table.Chains, c)
	case unix.NFT_MSG_NEWRULE:
		rule, err := decodeRule(data)
		if d.other && err == nil { // there may be many, so they are not kept as expressions
			d.count++
			d.addRule(rule)
		} else {
			d.rules = append(d.rules, rule)
		}
		if d.count > maxOtherRules {
			err = leftOutError(fmt.Sprintf("it has more than %d rules", maxOtherRules))
		}
		return err
	}
	return nil
}

func (d *decoder) addRule(r decodedRule) {
	if chain := d.chains[r.chain]; chain != nil {
		d.table.Kernel.Handles[chain.Name] = append(d.table.Kernel.Handles[chain.Name], r.handle)
		chain.Rules = append(chain.Rules, r.rule(d.table.Family, func(name string) *Set { return d.sets[name] }))
	}
}

func (d *decoder) takeElements(data []byte) error {
	s := d.sets[elementsOf(data)]
	switch {
	case s == nil && d.other:
		return nil // the set came while the sets were listed
	case s == nil:
		return errors.New("elements come before their set")
	}
	s.kernel.partial = false
	return eachElement(data, func(raw *rawElement) error {
		if s.kernel.bounds {
			s.kernel.edges = append(s.kernel.edges, edge{Data(raw.key), raw.isEnd()})
		}
		if raw.isEnd() {
			return nil
		}
		e := raw.element()
		if !d.other && !s.isOpaque() && (e.Key != CatchAll && len(e.Key) != s.Key.Len() || len(e.Value) != s.Data.Len()) {
			return fmt.Errorf("an element of set %s is not %s", s.Name, s.typeText())
		}
		s.putRead(e, raw.unknownIn(s))
		return nil
	})
}

// finish returns the table. It adds the rules to their chains, because only now all sets and chains are known.
func (d *decoder) finish() *Table {
	t := d.table
	if t.Kernel.Handles == nil {
		t.Kernel.Handles = map[string][]uint64{}
	}
	if !d.other { // the order of another program's chains is that in which they were made
		SortChains(t.Chains)
	}
	for _, s := range t.Sets {
		s.setRanges()
	}
	for _, r := range d.rules {
		d.addRule(r)
	}
	return t
}

func elementsOf(data []byte) string {
	return netlinkattr.Text(netlinkattr.Find(data[nfgenmsgLen:], unix.NFTA_SET_ELEM_LIST_SET))
}
