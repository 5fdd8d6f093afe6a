package evaluator

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// Added is an element that a packet added to a dynamic map, such as a client and its endpoint in a map of session
// affinity.
type Added struct {
	// Family is that of the table.
	Family nft.Family
	// Table and Map are the names of the table and of the map in it.
	Table, Map string
	// Element has the key, the value and the timeout.
	Element nft.Element
}

func (a Added) isOf(t *nft.Table, set *nft.Set) bool {
	return a.Family == t.Family && a.Table == t.Name && a.Map == set.Name
}

// change is an element that packets added to a set or deleted from it. Without a key, the element is not known.
type change struct {
	Added
	deleted bool
}

type lookedUp struct {
	table *nft.Table
	set   string
	key   nft.Data
}

type answer struct {
	nft.Element
	found truth
	// why says why it is not known whether there is an element.
	why string
	err error
}

// lookUp finds the element that the packet's key finds in a set.
func (s *statements) lookUp(c nft.Concat, name string) answer {
	set := s.Set(name)
	if set == nil {
		return answer{err: fmt.Errorf("there is no set or map %s", name)}
	}
	k := s.evaluate(c)
	switch {
	case k.absent:
		return answer{}
	case len(k.data) != set.Key.Len():
		return answer{err: fmt.Errorf("%s is looked up by %d bytes, want %d", name, len(k.data), set.Key.Len())}
	case !k.isKnown():
		return s.lookUpUnknown(set, k)
	}
	a := s.find(set, nft.Data(k.data))
	if a.found == yes && a.Stateful {
		a.found, a.why = maybe, "the element of "+name+" has a limit or the like"
	}
	if a.found != no && !s.lenient() {
		s.elements = append(s.elements, set.FormatElement(a.Element))
	}
	return a
}

// lookUpUnknown is lookUp for a key with unknown bits.
func (s *statements) lookUpUnknown(set *nft.Set, k value) answer {
	unchanged := !slices.ContainsFunc(s.changes, func(c change) bool { return c.isOf(s.Table, set) })
	if unchanged && !set.Partial() && !slices.ContainsFunc(set.Elements(), k.mayBe) {
		return answer{}
	}
	return answer{found: maybe, why: k.why}
}

// mayBe reports whether an element may have the key: whether each known run of bytes is in its range.
func (v value) mayBe(e nft.Element) bool {
	end := cmp.Or(e.KeyEnd, e.Key)
	if e.Key == nft.CatchAll || len(e.Key) != len(v.data) || len(end) != len(v.data) {
		return e.Key == nft.CatchAll
	}
	for from := 0; from < len(v.data); from++ {
		to := from
		for to < len(v.data) && v.known[to] == 0xff {
			to++
		}
		if part := nft.Data(v.data[from:to]); part < e.Key[from:to] || part > end[from:to] {
			return false
		}
		from = to
	}
	return true
}

// find finds the element of a set with a key: the one that packets added last, else the one in the table.
func (s *statements) find(set *nft.Set, key nft.Data) answer {
	for _, c := range slices.Backward(s.changes) {
		switch {
		case !c.isOf(s.Table, set):
		case c.Element.Key == key:
			return answer{Element: c.Element, found: truthOf(!c.deleted)}
		case c.Element.Key == "":
			return answer{found: maybe, why: "which elements rules have changed in " + set.Name + " is not known"}
		}
	}
	q := lookedUp{s.Table, set.Name, key}
	a, asked := s.others.found[q]
	if asked {
		return a
	}
	switch {
	case set.Partial() && s.host.Lookup != nil:
		var found bool
		a.Element, found, a.err = s.host.Lookup(s.Table, set.Name, key)
		a.found = truthOf(found)
	case set.Partial():
		a.found, a.why = maybe, fmt.Sprintf("the set %s has elements that were not read", set.Name)
	default:
		var found bool
		a.Element, found = set.Find(key)
		a.found = truthOf(found)
	}
	s.others.found[q] = a
	return a
}

// mapped returns a part of the value that a map has for the packet. The kernel looks it up once in a rule.
func (s *statements) mapped(m nft.Mapped) value {
	name := m.Map + " " + m.Key.String()
	a, done := s.maps[name]
	if !done {
		a = s.lookUp(m.Key, m.Map)
		if s.maps == nil {
			s.maps = map[string]answer{}
		}
		s.maps[name] = a
	}
	switch {
	case a.err != nil:
		return unknown(m.Length, a.err.Error())
	case a.found == no:
		return value{absent: true}
	case a.found == maybe:
		return unknown(m.Length, cmp.Or(a.why, "what the map has for the packet is not known"))
	}
	v := known(a.Value)
	if m.Offset < 0 || m.Offset+m.Length > len(v.data) {
		return unknown(m.Length, fmt.Sprintf("%s has no such value", m.Map))
	}
	return known(bytes.Clone(v.data[m.Offset : m.Offset+m.Length]))
}

// update adds an element to a dynamic map or set. An existing element keeps its data. If the map is full, the kernel adds
// nothing and ends the rule (net/netfilter/nft_dynset.c).
func (s *statements) update(u nft.Update) result {
	set := s.Set(u.Map)
	if set == nil {
		return result{matches: yes, undecided: "there is no dynamic map or set " + u.Map}
	}
	k, d := s.evaluate(u.Key), s.evaluate(u.Data)
	switch {
	case k.absent || d.absent:
		return result{}
	case len(k.data) != set.Key.Len() || len(d.data) != set.Data.Len():
		return result{matches: yes, undecided: fmt.Sprintf("%s does not map %s to %s", u.Map, u.Key, u.Data)}
	}
	element := nft.Element{Key: nft.Data(k.data), Value: nft.Data(d.data)}
	res := result{matches: yes}
	there := answer{found: maybe, why: k.why}
	if k.isKnown() {
		there = s.find(set, element.Key)
	} else {
		element = nft.Element{} // any
	}
	full, why := s.full(set, there)
	switch {
	case there.err != nil:
		return result{matches: yes, undecided: there.err.Error()}
	case there.found == yes:
		element = there.Element
	case full == yes:
		return result{}
	case full == maybe:
		res.matches, res.why = maybe, why
	case !d.isKnown() && u.Data != nil:
		element = nft.Element{}
	}
	if u.With != "" || there.Stateful {
		res.matches, res.why = maybe, "the rate at which packets come is not known"
	}
	if !u.Add || there.found != yes {
		element.Timeout, element.Expires = u.Timeout, u.Timeout
	}
	element.Stateful = u.With != ""
	res.before = func() { s.change(set, element, false) }
	return res
}

// change notes that an element was added or deleted. What becomes of the rule then does not undo it.
func (s *statements) change(set *nft.Set, e nft.Element, deleted bool) {
	added := Added{Family: s.Family, Table: s.Name, Map: set.Name, Element: e}
	s.changes = append(slices.Clip(s.changes), change{added, deleted})
	if !deleted && e.Key != "" && !s.lenient() {
		s.fate.Added = append(slices.Clip(s.fate.Added), added)
		s.elements = append(s.elements, set.FormatElement(e))
	}
}

// delete removes an element of a dynamic set.
func (s *statements) delete(d nft.Delete) result {
	set := s.Set(d.Set)
	if set == nil {
		return result{matches: yes, undecided: "there is no dynamic map or set " + d.Set}
	}
	k := s.evaluate(d.Key)
	switch {
	case k.absent:
		return result{}
	case !k.isKnown():
		return result{matches: yes, before: func() { s.change(set, nft.Element{}, true) }}
	}
	return result{matches: yes, before: func() { s.change(set, nft.Element{Key: nft.Data(k.data)}, true) }}
}

// full reports whether a dynamic set has no room for another element.
func (s *statements) full(set *nft.Set, there answer) (full truth, why string) {
	if there.found == yes {
		return no, ""
	}
	size := int(cmp.Or(set.Size, nft.DefaultSize))
	if set.Partial() {
		if n := set.Count(); n >= 0 && n+len(s.changes) < size {
			return no, ""
		}
		return maybe, "whether the set " + set.Name + " is full is not known"
	}
	keys := map[nft.Data]bool{}
	for _, e := range set.Elements() {
		keys[e.Key] = true
	}
	for _, c := range s.changes {
		if c.isOf(s.Table, set) {
			keys[c.Element.Key] = !c.deleted
		}
	}
	n := 0
	for _, is := range keys {
		if is {
			n++
		}
	}
	return truthOf(n >= size), ""
}
