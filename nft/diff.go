package nft

import (
	"slices"
)

// Diff returns the transaction that turns the table have into want. It is empty when both are the same. A nil table
// does not exist.
//
// Some differences cannot be made step by step: another type of a set, another comment or flag of the table, another
// comment of a set or of a regular chain. Then the transaction replaces the whole table. For another Size of a set it
// deletes and adds that set and all rules that use it. Elements that packets added to a Dynamic set stay, unless the
// set or the table is replaced.
func Diff(have, want *Table) Transaction {
	tx, d, pairs := beginDiff(have, want)
	if d == nil {
		return tx
	}
	for _, pair := range pairs {
		d.compareElements(pair.have, pair.want)
	}
	return d.transaction()
}

// beginDiff compares two tables without the elements of sets that both have. If d is nil, tx is the whole difference.
// Otherwise d is the difference, and the elements of pairs remain to be compared.
func beginDiff(have, want *Table) (tx Transaction, d *delta, pairs []setPair) {
	switch {
	case have == nil && want == nil:
		return Transaction{}, nil, nil
	case want == nil:
		return Transaction{Steps: []Step{{Op: DeleteTable, Table: have}}}, nil, nil
	case have == nil:
		return build(want), nil, nil
	}
	has, wants := have.index(), want.index()
	if !have.becomes(want) || !sameComment(have.Comment, want.Comment) || !has.becomes(want) {
		return Replace(want), nil, nil
	}
	d = &delta{table: want, adopt: want.Owner && !have.Owner, deleteObjects: have.Objects, rebuiltSets: map[string]bool{}}
	pairs = d.compareSets(has, wants)
	d.compareChains(has, wants)
	return Transaction{}, d, pairs
}

// Replace returns the transaction that deletes the table of want's name, if there is one, and adds want.
func Replace(want *Table) Transaction {
	tx := Remove(want.Family, want.Name)
	tx.Append(build(want))
	return tx
}

// Remove returns the transaction that deletes a table if it exists.
func Remove(family Family, name string) Transaction {
	return Transaction{Steps: []Step{{Op: DestroyTable, Table: &Table{Family: family, Name: name}}}}
}

// becomes reports whether the table's flags are those of want, or can become so: an orphan can be taken over.
func (t *Table) becomes(want *Table) bool {
	if t.orphan() && want.Persist && want.Owner {
		return t.Dormant == want.Dormant
	}
	return t.flags() == want.flags()
}

func build(want *Table) Transaction {
	d := delta{table: want, addTable: true, addSets: want.Sets, addChains: want.Chains, newRules: want.Chains}
	for _, s := range want.Sets {
		d.addElements = append(d.addElements, setElements{set: s, all: true})
	}
	return d.transaction()
}

// becomes reports whether the sets and chains can be turned into those of want step by step.
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

// replaceable reports whether have can be turned into want step by step. A regular chain
// cannot be deleted while something leads to it, so only its rules can change.
func replaceable(have, want *Chain) bool {
	return have.same(want) || have.Hook != "" && want.Hook != ""
}

// delta is the difference between two states of one table, before it is put in an order
// that the kernel accepts.
type delta struct {
	table                   *Table
	addTable, adopt         bool
	addSets, deleteSets     []*Set
	rebuiltSets             map[string]bool // by name: those that are deleted and added again
	addChains, deleteChains []*Chain
	flushChains, newRules   []*Chain
	deleteObjects           []Object
	deleteElements          []setElements
	addElements             []setElements
}

type setElements struct {
	set      *Set
	elements []Element
	// all means all elements of the set, instead of elements.
	all bool
}

// steps returns the step that does op to the elements, if there are any.
func (e setElements) steps(op StepOp) []Step {
	s := Step{Op: op, Set: e.set, Elements: e.elements, All: e.all}
	if s.Len() == 0 {
		return nil
	}
	return []Step{s}
}

// setPair is a wanted set and the kernel's set of that name. have is nil if there is none, or if it has to be made
// anew.
type setPair struct{ have, want *Set }

// compareSets compares the sets without their elements, and returns those whose elements have to be compared.
func (d *delta) compareSets(have, want index) (pairs []setPair) {
	for _, w := range want.table.Sets {
		h := have.sets[w.Name]
		switch {
		case h == nil:
			d.addSets = append(d.addSets, w)
		case !h.sameType(w):
			d.deleteSets, d.addSets = append(d.deleteSets, h), append(d.addSets, w)
			d.rebuiltSets[w.Name] = true
			h = nil
		}
		pairs = append(pairs, setPair{h, w})
	}
	for _, h := range have.table.Sets {
		// An anonymous set goes with its rule, and cannot be deleted by name.
		if want.sets[h.Name] == nil && !h.anonymous {
			d.deleteSets = append(d.deleteSets, h)
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

// compareElements compares all elements. Of a Dynamic set it compares the catch-all only, which packets cannot add.
func (d *delta) compareElements(have, want *Set) {
	if have == nil {
		have = &Set{}
	}
	var gone, added []Element
	for h := range have.each() {
		if want.Dynamic && h.Key != CatchAll {
			continue
		}
		if w, ok := want.Element(h.Key); !ok || !w.same(h) || have.foreign[h.Key] != "" {
			gone = append(gone, h)
		}
	}
	for w := range want.each() {
		if want.Dynamic {
			break
		}
		if h, ok := have.Element(w.Key); !ok || !w.same(h) || have.foreign[w.Key] != "" {
			added = append(added, w)
		}
	}
	d.deleteElements = append(d.deleteElements, setElements{set: want, elements: gone})
	d.addElements = append(d.addElements, setElements{set: want, elements: added})
}

// compareSet notes the steps from have to want; nil means no such set. Two sets must be of the same type.
func (d *delta) compareSet(have, want *Set) {
	switch {
	case have == nil && want != nil:
		d.addSets = append(d.addSets, want)
	case have != nil && want == nil:
		d.deleteSets = append(d.deleteSets, have)
	}
}

// compareChain notes the steps from have to want; nil means no such chain.
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
	case !sameRules(have.Rules, want.Rules), d.rebuilds(want):
		d.flushChains = append(d.flushChains, have)
		d.newRules = append(d.newRules, want)
	}
}

// rebuilds reports whether a rule of the chain refers to a set that is deleted and added again. Such rules have to be
// deleted and added too: the kernel deletes no set that is in use.
func (d *delta) rebuilds(c *Chain) bool {
	return len(d.rebuiltSets) > 0 && slices.ContainsFunc(c.Rules, func(r Rule) bool {
		return slices.ContainsFunc(r.Statements, func(s Statement) bool { return d.rebuiltSets[setOf(s)] })
	})
}

// transaction orders the steps. Each object is added before anything refers to it, and deleted after everything that
// refers to it.
func (d *delta) transaction() Transaction {
	var tx Transaction
	add := func(steps ...Step) {
		for _, s := range steps {
			s.Table = d.table
			tx.Steps = append(tx.Steps, s)
		}
	}
	if d.addTable {
		add(Step{Op: AddTable})
	}
	if d.adopt {
		add(Step{Op: AdoptTable})
	}
	for _, c := range d.flushChains {
		add(Step{Op: FlushChain, Chain: c})
	}
	for _, e := range d.deleteElements {
		add(e.steps(DeleteElements)...)
	}
	// Sets are deleted before chains, because their elements may lead to chains.
	for _, s := range d.deleteSets {
		add(Step{Op: DeleteSet, Set: s})
	}
	for _, c := range d.deleteChains {
		add(Step{Op: DeleteChain, Chain: c})
	}
	for _, o := range d.deleteObjects {
		add(Step{Op: DeleteObject, Object: o})
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
		add(e.steps(AddElements)...)
	}
	return tx
}
