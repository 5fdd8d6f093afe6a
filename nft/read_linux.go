package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// readAttempts is how often a listing is tried when commits keep coming between its parts.
const readAttempts = 10

// ReadTable reads a table with all it holds back from the kernel. A table that does not
// exist is nil without an error. When others change the ruleset meanwhile it starts
// again, and gives up with an error after ten attempts.
func (c *Conn) ReadTable(family Family, name string) (*Table, error) {
	for range readAttempts {
		t, err := c.readTable(family, name)
		if !errors.Is(err, ErrGenerationMoved) {
			if err != nil {
				return nil, fmt.Errorf("nft: read table %s %s: %w", family, name, err)
			}
			return t, nil
		}
	}
	return nil, fmt.Errorf("nft: read table %s %s: %w, %d times", family, name, ErrGenerationMoved, readAttempts)
}

// HasTable reports whether the kernel has a table of that name.
func (c *Conn) HasTable(family Family, name string) (bool, error) {
	t, err := c.ReadHeader(family, name)
	return t != nil, err
}

// ReadHeader reads a table without its chains and sets: its comment, its flags and its owner. A table that does not
// exist is nil without an error.
func (c *Conn) ReadHeader(family Family, name string) (*Table, error) {
	t, err := c.readHeader(family, name)
	if err != nil {
		return nil, fmt.Errorf("nft: look for table %s %s: %w", family, name, err)
	}
	return t, nil
}

func (c *Conn) readHeader(family Family, name string) (t *Table, err error) {
	err = c.use(func(s *socket) error {
		t, err = s.readHeader(family, name)
		return err
	})
	return t, withPrivilege(err)
}

// readTable reads once, and makes sure by the generation number that all its parts are of one state.
func (c *Conn) readTable(family Family, name string) (*Table, error) {
	before, err := c.Generation()
	if err != nil {
		return nil, err
	}
	t, err := c.readParts(family, name)
	if err != nil || t == nil {
		return nil, err
	}
	after, err := c.Generation()
	if err != nil {
		return nil, err
	}
	if before != after {
		return nil, ErrGenerationMoved
	}
	return t, nil
}

func (c *Conn) readParts(family Family, name string) (*Table, error) {
	t, err := c.readHeader(family, name)
	if err != nil || t == nil {
		return nil, err
	}
	for _, part := range []func(*Table) error{c.readSets, c.readObjects, c.readFlowtables, c.readChains, c.readRules} {
		if err := part(t); errors.Is(err, unix.ENOENT) {
			return nil, ErrGenerationMoved // deleted under our hands
		} else if err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (c *Conn) readSets(t *Table) error {
	var a attributes
	a.str(unix.NFTA_SET_TABLE, t.Name)
	replies, err := c.dump(unix.NFT_MSG_GETSET, t.Family, a)
	if err != nil {
		return err
	}
	for _, r := range replies {
		table, s, err := decodeSet(r.Data)
		if err != nil {
			return err
		}
		if table != t.Name {
			continue
		}
		t.Sets = append(t.Sets, s)
		if s.Dynamic {
			if err := c.readCatchAll(t, s); err != nil {
				return err
			}
			continue
		}
		if err := c.readElements(t, s); err != nil {
			return err
		}
		// A listing can leave elements out while the kernel rehashes a set that has grown. What the kernel counts
		// in sets with ranges is its own affair.
		if n, known := elementCount(r.Data); known && n != s.counted() && !s.Interval && !s.isOpaque() {
			return ErrGenerationMoved
		}
	}
	return nil
}

// counted is how many elements the kernel says that the set has: it does not count the catch-all.
func (s *Set) counted() int {
	if _, has := s.Element(CatchAll); has {
		return s.Len() - 1
	}
	return s.Len()
}

// ReadElements returns the elements that a Dynamic set has now, in no order and without a catch-all. Packets add to it and time takes
// from it while it is read. A set that does not exist, or whose elements are not of the type of s, is an error.
func (c *Conn) ReadElements(family Family, table string, s *Set) ([]Element, error) {
	var read *Set
	var err error
	for range readAttempts {
		read = &Set{Name: s.Name, Key: s.Key, Data: s.Data}
		if err = c.readElements(&Table{Family: family, Name: table}, read); !errors.Is(err, ErrGenerationMoved) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("nft: read elements of %s %s %s %s: %w", s.Kind(), family, table, s.Name, err)
	}
	read.Remove(CatchAll)
	elements := unordered(read)
	for _, e := range elements {
		if len(e.Key) != s.Key.Len() || len(e.Value) != s.Data.Len() {
			return nil, fmt.Errorf("nft: %s %s %s %s: its elements are not %s : %s", s.Kind(), family, table, s.Name, s.Key, s.Data)
		}
	}
	return elements, nil
}

func (c *Conn) readElements(t *Table, s *Set) error {
	return c.ask(context.Background(), query{unix.NFT_MSG_GETSETELEM, netlink.Dump, t.Family, elementList(t, s)}, func(r reply) error {
		return decodeElements(r.Data, s)
	})
}

// elementList begins a request for elements of a set.
func elementList(t *Table, s *Set) attributes {
	var a attributes
	a.str(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	a.str(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	return a
}

// readCatchAll reads the catch-all element, if the set has one, without listing the others.
func (c *Conn) readCatchAll(t *Table, s *Set) error {
	a := elementList(t, s)
	list := a.begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	a.element(s, &Element{Key: CatchAll}, false)
	a.end(list)
	err := c.ask(context.Background(), query{typ: unix.NFT_MSG_GETSETELEM, family: t.Family, attrs: a}, func(r reply) error {
		return decodeElements(r.Data, s)
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		return nil // it has none, or the kernel knows none
	}
	return err
}

// nftaSetCount is NFTA_SET_COUNT (kernel 6.15).
const nftaSetCount = 20

// elementCount returns how many elements the description of a set says that it has; false if it does not.
func elementCount(data []byte) (n int, known bool) {
	_ = decodeAttributes(data, func(typ uint16, b []byte) error {
		if typ == nftaSetCount {
			count, err := be32(b)
			n, known = int(count), err == nil
		}
		return nil
	})
	return n, known
}

func (c *Conn) readObjects(t *Table) error {
	var a attributes
	a.str(unix.NFTA_OBJ_TABLE, t.Name)
	return c.appendObjects(t, query{unix.NFT_MSG_GETOBJ, netlink.Dump, t.Family, a}, decodeObject)
}

func (c *Conn) readFlowtables(t *Table) error {
	var a attributes
	a.str(nftaFlowtableTable, t.Name)
	return c.appendObjects(t, query{nftMsgGetFlowtable, netlink.Dump, t.Family, a}, decodeFlowtable)
}

func (c *Conn) appendObjects(t *Table, q query, decode func([]byte) (string, Object, error)) error {
	return c.ask(context.Background(), q, func(r reply) error {
		table, o, err := decode(r.Data)
		if err == nil && table == t.Name {
			t.Objects = append(t.Objects, o)
		}
		return err
	})
}

func (c *Conn) readChains(t *Table) error {
	replies, err := c.dump(unix.NFT_MSG_GETCHAIN, t.Family, nil)
	if err != nil {
		return err
	}
	for _, r := range replies {
		table, chain, err := decodeChain(r.Data)
		if err != nil {
			return err
		}
		if table == t.Name {
			t.Chains = append(t.Chains, chain)
		}
	}
	SortChains(t.Chains)
	return nil
}

func (c *Conn) readRules(t *Table) error {
	var a attributes
	a.str(unix.NFTA_RULE_TABLE, t.Name)
	replies, err := c.dump(unix.NFT_MSG_GETRULE, t.Family, a)
	if err != nil {
		return err
	}
	for _, r := range replies {
		rule, err := decodeRule(r.Data)
		if err != nil {
			return err
		}
		chain := t.Chain(rule.chain)
		if rule.table != t.Name || chain == nil {
			continue
		}
		chain.Rules = append(chain.Rules, Rule{Statements: delinearize(t.Family, t.Set, rule.exprs), Comment: rule.comment})
	}
	return nil
}
