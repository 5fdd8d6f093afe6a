package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Bounds of ReadOthers, per table.
const (
	maxOtherRules    = 100_000
	maxListedSets    = 1_000
	maxListedElement = 12
)

// ReadOthers reads the tables of all programs, in the order in which they were made. The known tables are not read, but
// stand at their places. Tables of other families have their base chains only. In all others each rule has its
// Expressions as its one statement; elements of sets stay in the kernel: see Lookup. A table with more than 100,000 rules
// is an error. Commits of others do not end the call, so a rule can name a chain that has gone.
func (c *Conn) ReadOthers(ctx context.Context, known ...*Table) (tables []*Table, err error) {
	err = c.ask(ctx, query{typ: unix.NFT_MSG_GETTABLE, flags: netlink.Dump}, func(m reply) error {
		t, err := decodeAnyTable(m.Data)
		for _, k := range known {
			if t != nil && t.identity() == k.identity() {
				t = k
			}
		}
		tables = append(tables, t)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("nft: list tables: %w", err)
	}
	for _, t := range tables {
		if slices.Contains(known, t) {
			continue
		}
		r := reader{conn: c, ctx: ctx, family: t.Family, table: t.Name, throughCommits: true}
		if err := r.other(t); err != nil {
			return nil, fmt.Errorf("nft: read table %s %s: %w", t.Family, t.Name, err)
		}
	}
	return tables, nil
}

// other reads the contents of another program's table.
func (r *reader) other(t *Table) error {
	t.Kernel.Other = true
	chains := map[string]*Chain{}
	err := r.list(unix.NFT_MSG_GETCHAIN, func(m reply) error {
		c, err := decodeChain(m.Data)
		if c.Hook != "" {
			c.Hook = t.Family.hook(c.Hook)
		}
		t.Chains, chains[c.Name] = append(t.Chains, c), c
		return err
	})
	if err != nil || !t.Family.routes() {
		return err
	}
	if err := r.list(unix.NFT_MSG_GETSET, func(m reply) error {
		s, err := decodeSet(m.Data)
		t.Sets = append(t.Sets, s)
		return err
	}); err != nil {
		return err
	}
	if err := r.listAnonymous(t); err != nil {
		return err
	}
	index, rules := t.index(), 0
	t.Kernel.Handles = map[string][]uint64{}
	return r.list(unix.NFT_MSG_GETRULE, func(m reply) error {
		if rules++; rules > maxOtherRules {
			return fmt.Errorf("it has more than %d rules", maxOtherRules)
		}
		return decodeAttributes(m.Data, otherRule(t, chains, index.sets))
	})
}

// listAnonymous reads the first elements of the sets that stand in rules, to print them.
func (r *reader) listAnonymous(t *Table) error {
	listed := 0
	for _, s := range t.Sets {
		if !s.kernel.anonymous || listed == maxListedSets {
			continue
		}
		listed++
		err := r.elements(s.Name, func(raw *rawElement) error {
			if len(s.kernel.listed) == maxListedElement {
				return errStopped
			}
			e := *raw
			e.key, e.keyEnd, e.value, e.chain = slices.Clone(e.key), slices.Clone(e.keyEnd), slices.Clone(e.value), slices.Clone(e.chain)
			s.kernel.listed = append(s.kernel.listed, &e)
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// otherRule takes the attributes of a rule, of which the chain comes first.
func otherRule(t *Table, chains map[string]*Chain, sets map[string]*Set) func(uint16, []byte) error {
	var at *Chain
	return func(typ uint16, b []byte) error {
		switch {
		case typ == unix.NFTA_RULE_CHAIN:
			if at = chains[netlinkattr.Text(b)]; at != nil {
				at.Rules = append(at.Rules, Rule{})
			}
		case at == nil:
		case typ == unix.NFTA_RULE_HANDLE && len(b) == 8:
			t.Kernel.Handles[at.Name] = append(t.Kernel.Handles[at.Name], binary.BigEndian.Uint64(b))
		case typ == unix.NFTA_RULE_EXPRESSIONS:
			at.Rules[len(at.Rules)-1].Statements = []Statement{Expressions{family: t.Family, encoded: string(b), sets: sets}}
		case typ == unix.NFTA_RULE_USERDATA:
			at.Rules[len(at.Rules)-1].Comment = string(commentIn(b))
		}
		return nil
	}
}

// Lookup asks the kernel for the element of a set that a packet with the key would find: the same, one whose range
// contains it, or the catch-all. The key is padded, like all Data.
func (c *Conn) Lookup(ctx context.Context, t *Table, set string, key Data) (e Element, found bool, err error) {
	s := t.Set(set)
	if s == nil || len(key) < s.Key.keyLen() {
		return e, false, fmt.Errorf("nft: table %s %s has no set %s with keys of %d bytes", t.Family, t.Name, set, len(key))
	}
	r := reader{conn: c, ctx: ctx, family: t.Family, table: t.Name, throughCommits: true}
	for _, catchAll := range []bool{false, true} {
		a := elementList(set)
		list := a.Begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		elem := a.Begin(unix.NFTA_LIST_ELEM)
		if catchAll {
			a.Uint32(unix.NFTA_SET_ELEM_FLAGS, netlinkattr.SetElemFlagCatchAll)
		} else {
			k := a.Begin(unix.NFTA_SET_ELEM_KEY)
			a.ByteString(unix.NFTA_DATA_VALUE, string(key)[:s.Key.keyLen()])
			a.End(k)
		}
		a.End(elem)
		a.End(list)
		err = r.ask(query{typ: unix.NFT_MSG_GETSETELEM, attrs: a}, func(m reply) error {
			return eachElement(m.Data, func(raw *rawElement) error {
				expired := raw.timeout > 0 && raw.expires == 0
				if found = raw.flags&unix.NFT_SET_ELEM_INTERVAL_END == 0 && !expired; found {
					e = raw.element()
				}
				return nil
			})
		})
		if catchAll && errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			err = nil // none, or a kernel without catch-alls
		}
		if err != nil || found {
			break
		}
	}
	if err != nil {
		return e, false, fmt.Errorf("nft: look up a key in %s of table %s %s: %w", set, t.Family, t.Name, err)
	}
	return e, found, nil
}
