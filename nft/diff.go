package nft

import (
	"slices"
)

// Diff returns the transaction that turns the table have into want. Either may be nil: no
// table. It is empty when both are the same. Where the difference cannot be made step by
// step (a set with another type, a regular chain with another comment), the whole table is replaced.
func Diff(have, want *Table) Transaction {
	switch {
	case have == nil && want == nil:
		return Transaction{}
	case want == nil:
		return Transaction{Steps: []Step{{Op: DeleteTable, Table: have}}}
	case have == nil:
		return build(want)
	case have.Dormant != want.Dormant || have.Comment != want.Comment || !compatible(have, want):
		return Replace(want)
	}
	d := delta{table: want}
	d.compareSets(have, want)
	d.compareChains(have, want)
	return d.transaction()
}

// Replace returns the transaction that makes want from nothing, after deleting whatever
// table of its name there may be. To packets it happens in one instant.
func Replace(want *Table) Transaction {
	// Adding first makes the deletion succeed when there is no table; "destroy" would need kernel 6.3.
	tx := Transaction{Steps: []Step{{Op: AddTable, Table: &Table{Family: want.Family, Name: want.Name}}, {Op: DeleteTable, Table: want}}}
	tx.Append(build(want))
	return tx
}

// Remove returns the transaction that deletes a table if it exists.
func Remove(family Family, name string) Transaction {
	t := &Table{Family: family, Name: name}
	return Transaction{Steps: []Step{{Op: AddTable, Table: t}, {Op: DeleteTable, Table: t}}}
}

func build(want *Table) Transaction {
	d := delta{table: want, addTable: true, addSets: want.Sets, addChains: want.Chains, newRules: want.Chains}
	for _, s := range want.Sets {
		d.addElements = append(d.addElements, setElements{s, unordered(s)})
	}
	return d.transaction()
}

// unordered returns the elements of a set in any order, which is all the kernel needs.
func unordered(s *Set) []Element {
	out := make([]Element, 0, len(s.elements))
	for _, e := range s.elements {
		out = append(out, e)
	}
	return out
}

// compatible reports whether have can be turned into want step by step.
func compatible(have, want *Table) bool {
	for _, w := range want.Sets {
		if h := have.Set(w.Name); h != nil && !h.sameType(w) {
			return false
		}
	}
	for _, w := range want.Chains {
		if h := have.Chain(w.Name); h != nil && !replaceable(h, w) {
			return false
		}
	}
	return true
}

// replaceable reports whether have can be turned into want step by step. A regular chain
// cannot be deleted while something leads to it, so only its rules can change.
func replaceable(have, want *Chain) bool {
	return have.same(want) || have.Hook != "" && want.Hook != ""
}

// delta is the difference between two states of one table, before it is put in an order
// that the kernel accepts.
type delta struct {
	table                   *Table
	addTable                bool
	addSets, deleteSets     []*Set
	addChains, deleteChains []*Chain
	flushChains, newRules   []*Chain
	deleteElements          []setElements
	addElements             []setElements
}

type setElements struct {
	set      *Set
	elements []Element
}

func (d *delta) compareSets(have, want *Table) {
	for _, w := range want.Sets {
		h := have.Set(w.Name)
		if h == nil {
			d.addSets = append(d.addSets, w)
			h = &Set{}
		}
		if !w.Dynamic {
			d.compareElements(h, w)
		}
	}
	for _, h := range have.Sets {
		if want.Set(h.Name) == nil {
			d.deleteSets = append(d.deleteSets, h)
		}
	}
}

func (d *delta) compareElements(have, want *Set) {
	var gone, added []Element
	for key, h := range have.elements {
		if w, ok := want.elements[key]; !ok || w != h {
			gone = append(gone, h)
		}
	}
	for key, w := range want.elements {
		if h, ok := have.elements[key]; !ok || w != h {
			added = append(added, w)
		}
	}
	d.deleteElements = append(d.deleteElements, setElements{want, gone})
	d.addElements = append(d.addElements, setElements{want, added})
}

func (d *delta) compareChains(have, want *Table) {
	for _, w := range want.Chains {
		d.compareChain(have.Chain(w.Name), w)
	}
	for _, h := range have.Chains {
		if want.Chain(h.Name) == nil {
			d.compareChain(h, nil)
		}
	}
}

// compareSet notes what it takes to turn have, a set of the same type if any, into want; nil means no such set.
func (d *delta) compareSet(have, want *Set) {
	switch {
	case have == nil && want != nil:
		d.addSets = append(d.addSets, want)
	case have != nil && want == nil:
		d.deleteSets = append(d.deleteSets, have)
	}
}

// compareChain notes what it takes to turn have into want; nil means no such chain.
func (d *delta) compareChain(have, want *Chain) {
	switch {
	case have == nil && want == nil:
	case have == nil:
		d.addChains = append(d.addChains, want)
		d.newRules = append(d.newRules, want)
	case want == nil:
		d.flushChains = append(d.flushChains, have)
		d.deleteChains = append(d.deleteChains, have)
	case !have.same(want):
		d.flushChains = append(d.flushChains, have)
		d.deleteChains = append(d.deleteChains, have)
		d.addChains = append(d.addChains, want)
		d.newRules = append(d.newRules, want)
	case !sameRules(have.Rules, want.Rules):
		d.flushChains = append(d.flushChains, have)
		d.newRules = append(d.newRules, want)
	}
}

// transaction orders the steps so that nothing is referred to before it is there or
// deleted while something refers to it.
func (d *delta) transaction() Transaction {
	var tx Transaction
	add := func(s Step) {
		s.Table = d.table
		tx.Steps = append(tx.Steps, s)
	}
	if d.addTable {
		add(Step{Op: AddTable})
	}
	for _, c := range d.flushChains {
		add(Step{Op: FlushChain, Chain: c})
	}
	for _, e := range d.deleteElements {
		if len(e.elements) > 0 {
			add(Step{Op: DeleteElements, Set: e.set, Elements: e.elements})
		}
	}
	// Sets go before chains: their elements may lead to those.
	for _, s := range d.deleteSets {
		add(Step{Op: DeleteSet, Set: s})
	}
	for _, c := range d.deleteChains {
		add(Step{Op: DeleteChain, Chain: c})
	}
	for _, s := range d.addSets {
		add(Step{Op: AddSet, Set: s})
	}
	for _, c := range d.addChains {
		add(Step{Op: AddChain, Chain: c})
	}
	for _, c := range d.newRules {
		if len(c.Rules) > 0 {
			add(Step{Op: AddRules, Chain: c})
		}
	}
	for _, e := range d.addElements {
		if len(e.elements) > 0 {
			add(Step{Op: AddElements, Set: e.set, Elements: e.elements})
		}
	}
	return tx
}

// SortChains puts chains in the order in which this package's callers print them: base
// chains first, by hook and priority, then the others by name, numbers by value.
func SortChains(chains []*Chain) {
	slices.SortFunc(chains, compareChainOrder)
}
