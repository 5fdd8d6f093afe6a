package nft

import (
	"slices"
)

// Diff returns the transaction that turns the table have into want. It is empty when both are the same. A nil table
// does not exist.
//
// Some differences take a new table: another type of a set, another comment or flag of the table, another comment of
// a set or of a regular chain. For another Size of a set it deletes and adds that set and all rules that use it.
// Elements that packets added to a Dynamic set stay, unless the set or the table is replaced.
func Diff(have, want *Table) Transaction {
	d, pairs := beginDiff(have, want)
	for _, pair := range pairs {
		d.compareElements(pair.have, pair.want)
	}
	return d.transaction()
}

// beginDiff compares two tables without the elements of sets that both have. The elements of pairs remain to be
// compared.
func beginDiff(have, want *Table) (d *delta, pairs []setPair) {
	d = &delta{table: want, rebuiltSets: map[string]bool{}}
	switch {
	case have == nil && want == nil:
		return d, nil
	case want == nil:
		d.table = have
		d.add(Step{Op: DeleteTable})
		return d, nil
	case have == nil:
		d.build()
		return d, nil
	}
	has, wants := have.index(), want.index()
	if !have.becomes(want) || !sameComment(have.Comment, want.Comment) || !has.becomes(want) {
		d.replace()
		return d, nil
	}
	if want.Owner && !have.Owner {
		d.add(Step{Op: AdoptTable})
	}
	for _, o := range have.kernel().Objects {
		d.add(Step{Op: DeleteObject, Object: o})
	}
	pairs = d.compareSets(has, wants)
	d.compareChains(has, wants)
	return d, pairs
}

// Replace returns the transaction that deletes the table of want's name, if there is one, and adds want.
func Replace(want *Table) Transaction {
	d := &delta{table: want}
	d.replace()
	return d.transaction()
}

// Remove returns the transaction that deletes a table if it exists.
func Remove(family Family, name string) Transaction {
	return Transaction{Steps: []Step{{Op: DestroyTable, Table: &Table{Family: family, Name: name}}}}
}

// becomes reports whether the table has the flags of want, or can get them: an orphan can be taken over.
func (t *Table) becomes(want *Table) bool {
	if t.orphan() && want.Persist && want.Owner {
		return t.Dormant == want.Dormant
	}
	return t.flags() == want.flags()
}

// becomes reports whether the sets and chains can be turned into the sets and chains of want step by step.
func (i index) becomes(want *Table) bool {
	for _, w := range want.Sets {
		if h := i.sets[w.Name]; h != nil && !h.sameType(w) && !h.resizable(w) {
			return false
		}
	}
	for _, w := range want.Chains {
		if h := i.chains[w.Name]; h != nil && !replaceable(h, w) {
			return false
		}
	}
	return true
}

// replaceable reports whether have can be turned into want step by step. A regular chain cannot be deleted while
// something leads to it.
func replaceable(have, want *Chain) bool {
	return have.same(want) || have.Hook != "" && want.Hook != ""
}

// delta collects the steps from one state of a table to another.
type delta struct {
	table *Table
	steps []Step
	// rebuiltSets holds the names of sets that are deleted and added again.
	rebuiltSets map[string]bool
}

func (d *delta) add(s Step) {
	s.Table = d.table
	d.steps = append(d.steps, s)
}

func (d *delta) addElements(set *Set, gone, added []Element) {
	if len(gone) > 0 {
		d.add(Step{Op: DeleteElements, Set: set, Elements: gone})
	}
	if len(added) > 0 {
		d.add(Step{Op: AddElements, Set: set, Elements: added})
	}
}

func (d *delta) build() {
	d.add(Step{Op: AddTable})
	for _, s := range d.table.Sets {
		d.add(Step{Op: AddSet, Set: s})
		if s.Len() > 0 {
			d.add(Step{Op: AddElements, Set: s, All: true})
		}
	}
	for _, c := range d.table.Chains {
		d.compareChain(nil, c)
	}
}

// replace deletes the table, if it is there, and builds it.
func (d *delta) replace() {
	d.add(Step{Op: DestroyTable})
	d.build()
}

// setPair is a wanted set and the kernel's set of that name; nil if there is none, or if it has to be made anew.
type setPair struct{ have, want *Set }

// compareSets compares the sets without their elements, and returns those whose elements have to be compared.
func (d *delta) compareSets(have, want index) (pairs []setPair) {
	for _, w := range want.table.Sets {
		h := have.sets[w.Name]
		if h != nil && !h.sameType(w) {
			d.compareSet(h, nil)
			d.rebuiltSets[w.Name] = true
			h = nil
		}
		d.compareSet(h, w)
		pairs = append(pairs, setPair{h, w})
	}
	for _, h := range have.table.Sets {
		// An anonymous set goes with its rule, and cannot be deleted by name.
		if want.sets[h.Name] == nil && !h.kernel.anonymous {
			d.compareSet(h, nil)
		}
	}
	return pairs
}

func (d *delta) compareChains(have, want index) {
	for _, w := range want.table.Chains {
		d.compareChain(have.chains[w.Name], w)
	}
	for _, h := range have.table.Chains {
		// A chain that belongs to a rule goes with it, and cannot be touched by name.
		if want.chains[h.Name] == nil && !h.bound {
			d.compareChain(h, nil)
		}
	}
}

// compareElements compares all elements of a set, but only the catch-all of a Dynamic set, which packets cannot add.
func (d *delta) compareElements(have, want *Set) {
	if have == nil {
		have = &Set{}
	}
	var gone, added []Element
	for h := range have.each() {
		if want.Dynamic && h.Key != CatchAll {
			continue
		}
		if w, ok := want.Element(h.Key); !ok || !w.same(h) || have.kernel.unknown[h.Key] != "" {
			gone = append(gone, h)
		}
	}
	for w := range want.each() {
		if want.Dynamic {
			break
		}
		if h, ok := have.Element(w.Key); !ok || !w.same(h) || have.kernel.unknown[w.Key] != "" {
			added = append(added, w)
		}
	}
	d.addElements(want, gone, added)
}

// compareSet notes the steps from have to want; nil means no such set. Two sets must be of the same type.
func (d *delta) compareSet(have, want *Set) {
	switch {
	case have == nil && want != nil:
		d.add(Step{Op: AddSet, Set: want})
	case have != nil && want == nil:
		d.add(Step{Op: DeleteSet, Set: have})
	}
}

// compareChain notes the steps from have to want; nil means no such chain.
func (d *delta) compareChain(have, want *Chain) {
	stays := have != nil && want != nil && have.same(want)
	if stays && sameRules(have.Rules, want.Rules) && !d.rebuilds(want) {
		return
	}
	if have != nil {
		d.add(Step{Op: FlushChain, Chain: have})
	}
	if have != nil && !stays {
		d.add(Step{Op: DeleteChain, Chain: have})
	}
	if want != nil && !stays {
		d.add(Step{Op: AddChain, Chain: want})
	}
	if want != nil && len(want.Rules) > 0 {
		d.add(Step{Op: AddRules, Chain: want})
	}
}

// rebuilds reports whether a rule of the chain refers to a set that is deleted and added again, so that the rule has
// to be, too.
func (d *delta) rebuilds(c *Chain) bool {
	return len(d.rebuiltSets) > 0 && slices.ContainsFunc(c.Rules, func(r Rule) bool {
		return slices.ContainsFunc(r.Statements, func(s Statement) bool { return d.rebuiltSets[setOf(s)] })
	})
}

// stepOrder is an order that the kernel accepts: objects are added before what refers to them, and deleted after it.
// Sets are deleted before chains, because their elements may lead to chains.
var stepOrder = []StepOp{
	DeleteTable, DestroyTable, AddTable, AdoptTable,
	FlushChain, FlushSet, DeleteElements, DeleteSet, DeleteChain, DeleteObject,
	AddSet, AddChain, AddRules, AddElements,
}

func (d *delta) transaction() Transaction {
	slices.SortStableFunc(d.steps, func(a, b Step) int {
		return slices.Index(stepOrder, a.Op) - slices.Index(stepOrder, b.Op)
	})
	return Transaction{Steps: d.steps}
}
