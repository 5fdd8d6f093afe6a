package nft

import (
	"iter"
	"slices"
)

// Set is an nft set or map with its elements. It is a map when Data or Verdicts is set.
type Set struct {
	Name string
	// Key is what an element's key is made of. The kernel never sees the expressions, only
	// their lengths; nft prints them as "typeof".
	Key Concat
	// Data is what a map's values are made of; nil in a set and in a verdict map.
	Data Concat
	// Verdicts makes the map's values verdicts.
	Verdicts bool
	// Interval lets the last field of an element's key be a range, given by KeyEnd. The ranges must not
	// overlap. Key must have at least two fields (nft's "concatenation with ranges", kernel 5.6).
	Interval bool
	// Dynamic makes packets add elements to the set, with an Update statement, each with a timeout (nft's
	// flags dynamic and timeout). What they added is the kernel's alone: ReadTable leaves it out,
	// Diff leaves it as it is, and Conn.ReadElements returns it.
	Dynamic bool
	// Size is how many elements the set takes. In a Dynamic set, what packets would add beyond it is not added, and the
	// kernel takes 0 to mean DefaultSize. Such a set keeps the size that it was made with, whatever is wanted later,
	// since it would lose its elements otherwise. Elsewhere 0 means no limit; a transaction that goes beyond the limit
	// is refused with ErrSetFull. Elements that the transaction deletes first make room in it. In return the kernel
	// chooses a table of fixed length, which makes commits faster.
	Size uint32
	// Comment is shown by nft; at most 127 bytes.
	Comment string

	// anonymous says that the set was read from the kernel and belongs to a rule, with which it goes.
	anonymous bool
	// kernelCount is how many elements the kernel said that it has, when the set was read; -1 if it did not say.
	kernelCount int
	elements    map[Data]stored
	// foreign says of elements that were read what there is to them that an Element cannot say; nil for none.
	foreign map[Data]string
}

// DefaultSize is the size that the kernel gives to a Dynamic set without one. Such a set starts
// small and grows; the kernel allocates the hash buckets of a declared size at once (16 bytes for each element).
const DefaultSize = 1<<16 - 1

// IsMap reports whether nft calls the set a map.
func (s *Set) IsMap() bool { return s.Data != nil || s.Verdicts }

// Kind returns "map" or "set".
func (s *Set) Kind() string {
	if s.IsMap() {
		return "map"
	}
	return "set"
}

// Len is the number of elements.
func (s *Set) Len() int { return len(s.elements) }

// Element returns the element with the key.
func (s *Set) Element(key Data) (Element, bool) {
	e, ok := s.elements[key]
	if !ok {
		return Element{}, false
	}
	return e.element(key), true
}

// elementAt is Element without the need to make a Data of the key: it returns the element without it.
func (s *Set) elementAt(key []byte) (Element, bool) {
	e, ok := s.elements[Data(key)]
	if !ok {
		return Element{}, false
	}
	return e.element(""), true
}

// Put adds an element or replaces the one with its key.
func (s *Set) Put(e Element) {
	if s.elements == nil {
		s.elements = make(map[Data]stored)
	}
	s.elements[e.Key] = store(e)
	delete(s.foreign, e.Key)
}

// Grow makes room for n elements in a set that has none, which saves time if that many are put.
func (s *Set) Grow(n int) {
	if len(s.elements) == 0 {
		s.elements = make(map[Data]stored, n)
	}
}

// Remove removes the element with the key, if there is one.
func (s *Set) Remove(key Data) {
	delete(s.elements, key)
	delete(s.foreign, key)
}

// Elements returns all elements in the order of their keys.
func (s *Set) Elements() []Element {
	return slices.SortedFunc(s.each(), compareElements)
}

// each returns the elements in any order, which is all the kernel needs.
func (s *Set) each() iter.Seq[Element] {
	return func(yield func(Element) bool) {
		for key, e := range s.elements {
			if !yield(e.element(key)) {
				return
			}
		}
	}
}

// sameType reports whether two sets can hold the same elements.
func (s *Set) sameType(o *Set) bool {
	return s.Key.String() == o.Key.String() && s.Data.String() == o.Data.String() && s.Verdicts == o.Verdicts && s.Interval == o.Interval && s.Dynamic == o.Dynamic && (s.Dynamic || s.Size == o.Size) && sameComment(s.Comment, o.Comment)
}

// resizable reports whether two sets differ in nothing but their size, and can be exchanged. What packets have put
// into a Dynamic set would be lost on the way.
func (s *Set) resizable(o *Set) bool {
	resized := *s
	resized.Size = o.Size
	return !s.Dynamic && resized.sameType(o)
}
