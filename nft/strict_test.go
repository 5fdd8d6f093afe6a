package nft

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// strictKernel carries out transactions in memory, and is stricter than the real kernel
// about what may be added and deleted: a transaction never does anything in vain.
type strictKernel struct {
	tables map[string]*Table
}

func tableKey(t *Table) string { return t.Family.String() + " " + t.Name }

// commit carries out the transaction, or nothing of it.
func (k *strictKernel) commit(tx Transaction) error {
	next := strictKernel{tables: map[string]*Table{}}
	for key, t := range k.tables {
		next.tables[key] = clone(t)
	}
	for _, s := range tx.Steps {
		if err := next.step(s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	k.tables = next.tables
	return nil
}

// clone copies a table so far that steps on one do not show in the other.
func clone(t *Table) *Table {
	c := *t
	c.Sets, c.Chains = nil, nil
	for _, s := range t.Sets {
		copied := *s
		copied.elements = maps.Clone(s.elements)
		c.Sets = append(c.Sets, &copied)
	}
	for _, chain := range t.Chains {
		copied := *chain
		copied.Rules = slices.Clone(chain.Rules)
		c.Chains = append(c.Chains, &copied)
	}
	return &c
}

func (k *strictKernel) step(s Step) error {
	t := k.tables[tableKey(s.Table)]
	if s.Op == DestroyTable {
		delete(k.tables, tableKey(s.Table))
		return nil
	}
	if s.Op == AddTable {
		if t == nil {
			k.tables[tableKey(s.Table)] = &Table{Family: s.Table.Family, Name: s.Table.Name, Comment: s.Table.Comment}
		}
		return nil
	}
	if t == nil {
		return fmt.Errorf("no such table")
	}
	switch s.Op {
	case DeleteTable:
		delete(k.tables, tableKey(s.Table))
	case AddSet, DeleteSet, FlushSet, AddElements, DeleteElements:
		return t.setStep(s)
	default:
		return t.chainStep(s)
	}
	return nil
}

func (t *Table) setStep(s Step) error {
	have := t.Set(s.Set.Name)
	switch {
	case s.Op == AddSet && have != nil:
		return fmt.Errorf("the set exists")
	case s.Op == AddSet:
		added := *s.Set
		added.elements = nil
		t.Sets = append(t.Sets, &added)
		return nil
	case have == nil:
		return fmt.Errorf("no such set")
	case !have.sameType(s.Set):
		return fmt.Errorf("the set has another type")
	case s.Op == DeleteSet:
		if user := t.user(func(r reference) bool { return r.set == have.Name }); user != "" {
			return fmt.Errorf("in use by %s", user)
		}
		t.Sets = slices.DeleteFunc(t.Sets, func(o *Set) bool { return o == have })
		return nil
	case s.Op == FlushSet:
		have.elements = nil
		return nil
	}
	for e := range s.EachElement() {
		if err := t.elementStep(s.Op, have, e); err != nil {
			return fmt.Errorf("%s: %w", have.FormatElement(e), err)
		}
	}
	return nil
}

func (t *Table) elementStep(op StepOp, s *Set, e Element) error {
	if err := s.lengths().check(s, &e, op == AddElements); err != nil {
		return err
	}
	_, present := s.Element(e.Key)
	switch {
	case op == DeleteElements && !present:
		return fmt.Errorf("no such element")
	case op == DeleteElements:
		s.Remove(e.Key)
	case present:
		return fmt.Errorf("the element exists")
	case e.Verdict.Chain != "" && t.Chain(e.Verdict.Chain) == nil:
		return fmt.Errorf("no such chain")
	default:
		s.Put(e)
	}
	return nil
}

func (t *Table) chainStep(s Step) error {
	have := t.Chain(s.Chain.Name)
	switch {
	case s.Op == AddChain && have != nil:
		return fmt.Errorf("the chain exists")
	case s.Op == AddChain:
		added := *s.Chain
		added.Rules = nil
		t.Chains = append(t.Chains, &added)
		return nil
	case have == nil:
		return fmt.Errorf("no such chain")
	case s.Op == FlushChain:
		have.Rules = nil
	case s.Op == DeleteChain:
		if len(have.Rules) > 0 {
			return fmt.Errorf("the chain has rules")
		}
		if user := t.user(func(r reference) bool { return r.chain == have.Name }); user != "" {
			return fmt.Errorf("in use by %s", user)
		}
		t.Chains = slices.DeleteFunc(t.Chains, func(o *Chain) bool { return o == have })
	case s.Op == AddRules:
		return t.addRules(have, s.Chain.Rules)
	}
	return nil
}

func (t *Table) addRules(c *Chain, rules []Rule) error {
	for _, r := range rules {
		for _, ref := range references(r) {
			if ref.set != "" && t.Set(ref.set) == nil || ref.chain != "" && t.Chain(ref.chain) == nil {
				return fmt.Errorf("%s: refers to what is not there", r)
			}
		}
		c.Rules = append(c.Rules, r)
	}
	return nil
}

// reference is a set or a chain that a rule or an element refers to.
type reference struct{ set, chain string }

func references(r Rule) []reference {
	var out []reference
	for _, s := range r.Statements {
		switch s := s.(type) {
		case InSet:
			out = append(out, reference{set: s.Set})
		case Vmap:
			out = append(out, reference{set: s.Map})
		case NAT:
			if s.Map() != "" {
				out = append(out, reference{set: s.Map()})
			}
		case Verdict:
			out = append(out, reference{chain: s.Chain})
		}
	}
	return out
}

// user names something in the table that holds a reference that matches; empty if nothing does.
func (t *Table) user(match func(reference) bool) string {
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			if slices.ContainsFunc(references(r), match) {
				return c.Name + ": " + r.String()
			}
		}
	}
	for _, s := range t.Sets {
		for _, e := range s.Elements() {
			if match(reference{chain: e.Verdict.Chain}) {
				return s.Name + ": " + s.FormatElement(e)
			}
		}
	}
	return ""
}

// inOrder prints a table with its sets and chains in order, and leaves it as it is.
func inOrder(t *Table) string {
	if t == nil {
		return "no table"
	}
	c := *t
	c.Sets, c.Chains = slices.Clone(t.Sets), slices.Clone(t.Chains)
	slices.SortFunc(c.Sets, func(a, b *Set) int { return strings.Compare(a.Name, b.Name) })
	SortChains(c.Chains)
	return c.String()
}
