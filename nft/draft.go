package nft

import (
	"maps"
	"slices"
)

// Draft is a wanted table that changes. It records the difference from its last commit, so that the Transaction for a
// small change costs as little as the change. A failed commit loses nothing: the next Transaction contains all changes
// since the last one that was Committed.
//
//	d := nft.NewDraft(nft.FamilyIP, "example", "")
//	ips := d.AddSet(&nft.Set{Name: "ips", Key: nft.Concat{nft.IPDaddr}})
//	d.Put(ips, nft.Element{Key: nft.AddrData(addr)})
//	if _, err := conn.Commit(ctx, d.Transaction()); err == nil {
//		d.Committed()
//	}
//
// A Draft is not safe for concurrent use.
type Draft struct {
	family  Family
	name    string
	comment string
	owned   bool
	sets    []*Set
	// coming holds the sets of PutSet.
	coming parts[Set]
	chains parts[Chain]
	// elementsBefore has what the kernel has instead, for each element touched since the last commit.
	elementsBefore map[*Set]map[Data]elementBefore
	committed      bool
}

// parts are chains or sets by name, and what the kernel has instead for each name touched
// since the last commit; nil for none.
type parts[T any] struct{ now, before map[string]*T }

func newParts[T any]() parts[T] { return parts[T]{map[string]*T{}, map[string]*T{}} }

// touch notes what the kernel has under a name.
func (p parts[T]) touch(name string, committed bool) {
	if _, touched := p.before[name]; !touched && committed {
		p.before[name] = p.now[name]
	}
}

type elementBefore struct {
	element Element
	present bool
}

// NewDraft returns a draft of an empty table. Its first Transaction replaces the kernel's table of that name.
func NewDraft(family Family, name, comment string) *Draft {
	return &Draft{
		family: family, name: name, comment: comment,
		coming: newParts[Set](), chains: newParts[Chain](), elementsBefore: map[*Set]map[Data]elementBefore{},
	}
}

// Family is the family of the table.
func (d *Draft) Family() Family { return d.family }

// Own makes the table belong to the Conn that commits it, with the flags owner and persist: see Table. Call it before
// the first commit.
func (d *Draft) Own() { d.owned = true }

// AddSet adds a set or map for as long as the draft exists, and returns it. Call it before the first commit.
func (d *Draft) AddSet(s *Set) *Set {
	d.sets = append(d.sets, s)
	return s
}

// PutSet adds a set, or replaces the set with its name. Unlike a set of AddSet, the set may come and go between commits.
// Call PutSet with a set without elements, then Put the elements. A Dynamic set that is replaced by one of the same type
// keeps the elements that packets added. Any other set that is removed and comes back before the next commit must be
// the same object.
func (d *Draft) PutSet(s *Set) {
	d.coming.touch(s.Name, d.committed)
	d.coming.now[s.Name] = s
}

// RemoveSet removes the set of PutSet with the name, if there is one. No rule of the draft may use it.
func (d *Draft) RemoveSet(name string) {
	d.coming.touch(name, d.committed)
	delete(d.coming.now, name)
}

// SetBefore returns whether the set of PutSet with the name came or went since the last commit, and what it was
// then; nil for none.
func (d *Draft) SetBefore(name string) (before *Set, changed bool) {
	before, touched := d.coming.before[name]
	return before, touched && (before == nil) != (d.coming.now[name] == nil)
}

// Put adds an element to a set of the draft or replaces the one with its key.
func (d *Draft) Put(s *Set, e Element) {
	if !d.committed {
		s.Put(e)
		return
	}
	before, present := s.Element(e.Key)
	if present && before == e {
		return
	}
	d.touch(s, e.Key, before, present)
	s.Put(e)
}

// Remove removes the element with the key, if there is one.
func (d *Draft) Remove(s *Set, key Data) {
	before, present := s.Element(key)
	if !present {
		return
	}
	d.touch(s, key, before, present)
	s.Remove(key)
}

// touch notes what the kernel has of an element.
func (d *Draft) touch(s *Set, key Data, before Element, present bool) {
	touched := d.elementsBefore[s]
	if touched == nil {
		touched = map[Data]elementBefore{}
		d.elementsBefore[s] = touched
	}
	if _, ok := touched[key]; !ok && d.committed {
		touched[key] = elementBefore{before, present}
	}
}

// PutChain adds a chain or replaces the one with its name. The chain must not be modified afterwards.
func (d *Draft) PutChain(c *Chain) {
	d.chains.touch(c.Name, d.committed)
	d.chains.now[c.Name] = c
}

// RemoveChain removes the chain with the name, if there is one.
func (d *Draft) RemoveChain(name string) {
	d.chains.touch(name, d.committed)
	delete(d.chains.now, name)
}

// Table returns the table as it is wanted now. It shares its sets with the draft and is valid until the draft's next
// change.
func (d *Draft) Table() *Table {
	chains := slices.Collect(maps.Values(d.chains.now))
	SortChains(chains)
	t := d.header()
	t.Sets, t.Chains = d.allSets(), chains
	return t
}

func (d *Draft) header() *Table {
	return &Table{Family: d.family, Name: d.name, Comment: d.comment, Owner: d.owned, Persist: d.owned}
}

// allSets returns the sets of AddSet, then the sets of PutSet by name, Dynamic sets last. The kernel searches sets in
// a list, in the order in which they were added, and there can be many Dynamic ones.
func (d *Draft) allSets() []*Set {
	coming := slices.SortedFunc(maps.Values(d.coming.now), func(a, b *Set) int {
		if a.Dynamic == b.Dynamic {
			return compareNatural(a.Name, b.Name)
		} else if a.Dynamic {
			return 1
		}
		return -1
	})
	return append(slices.Clone(d.sets), coming...)
}

// Transaction returns the difference from the last commit to the draft. If there was no commit, or the difference
// cannot be made step by step (see Diff), it replaces the table.
func (d *Draft) Transaction() Transaction {
	if !d.committed {
		return Replace(d.Table())
	}
	delta := delta{table: d.header()}
	for _, name := range slices.SortedFunc(maps.Keys(d.chains.before), compareNatural) {
		have, want := d.chains.before[name], d.chains.now[name]
		if have != nil && want != nil && !replaceable(have, want) {
			return Replace(d.Table())
		}
		delta.compareChain(have, want)
	}
	for _, name := range slices.Sorted(maps.Keys(d.coming.before)) {
		have, want := d.coming.before[name], d.coming.now[name]
		if have != nil && want != nil && !have.sameType(want) {
			return Replace(d.Table())
		}
		delta.compareSet(have, want)
	}
	for _, s := range d.changedSets() {
		gone, added := d.elementChanges(s)
		delta.addElements(s, gone, added)
	}
	return delta.transaction()
}

// changedSets returns the sets of AddSet, then the sets of PutSet that had elements put or removed, by name.
func (d *Draft) changedSets() []*Set {
	var changed []*Set
	for s := range d.elementsBefore {
		if d.coming.now[s.Name] == s {
			changed = append(changed, s)
		}
	}
	slices.SortFunc(changed, func(a, b *Set) int { return compareNatural(a.Name, b.Name) })
	return append(slices.Clip(d.sets), changed...)
}

func (d *Draft) elementChanges(s *Set) (gone, added []Element) {
	for key, before := range d.elementsBefore[s] {
		now, present := s.Element(key)
		if before.present == present && before.element == now {
			continue
		}
		if before.present {
			gone = append(gone, before.element)
		}
		if present {
			added = append(added, now)
		}
	}
	return gone, added
}

// Committed notes that the kernel now holds the draft as it is. Call it after each successful commit of its
// Transaction, before the next change.
func (d *Draft) Committed() {
	d.committed = true
	clear(d.chains.before)
	clear(d.coming.before)
	clear(d.elementsBefore)
}

// HasCommitted reports whether Committed was called, and Invalidate was not called since.
func (d *Draft) HasCommitted() bool { return d.committed }

// Invalidate notes that the kernel's table is no longer known. The next Transaction replaces it.
func (d *Draft) Invalidate() {
	d.Committed()
	d.committed = false
}
