package nft

import (
	"time"
)

// CatchAll is the key of the element that a lookup finds for each key that the set does not have, nft's "*" (kernel
// 5.13).
const CatchAll Data = "*"

// Element is one element of a set or map.
type Element struct {
	// Key is the key, or CatchAll.
	Key Data
	// KeyEnd is the last key of the range that starts with Key, in a set with Interval.
	KeyEnd Data
	// Value is the data of a map's element, in a map with Data.
	Value Data
	// Verdict is the verdict of an element in a verdict map.
	Verdict Verdict
	// Comment is shown by nft; at most 127 bytes.
	Comment string
	// Timeout is how long an element of a Dynamic set lives after packets last updated it. Expires is how much of that is
	// left. Both are whole milliseconds, and 0 in sets that are not Dynamic.
	Timeout, Expires time.Duration
}

// stored is an element as a Set keeps it, without its key. Elements of large sets have a key, perhaps a value, and
// nothing else. So the other fields are apart: elements are most of the memory of a program with many of them.
type stored struct {
	value Data
	rest  *elementRest // nil if it would be zero
}

type elementRest struct {
	keyEnd           Data
	verdict          Verdict
	comment          string
	timeout, expires time.Duration
}

func store(e Element) stored {
	s := stored{value: e.Value}
	if rest := (elementRest{e.KeyEnd, e.Verdict, e.Comment, e.Timeout, e.Expires}); rest != (elementRest{}) {
		kept := rest // the address of rest would move it to the heap for each element
		s.rest = &kept
	}
	return s
}

func (s stored) element(key Data) Element {
	e := Element{Key: key, Value: s.value}
	if r := s.rest; r != nil {
		e.KeyEnd, e.Verdict, e.Comment, e.Timeout, e.Expires = r.keyEnd, r.verdict, r.comment, r.timeout, r.expires
	}
	return e
}

// same reports whether the kernel holds the same for both elements.
func (e Element) same(o Element) bool {
	if e == o {
		return true
	}
	if !sameComment(e.Comment, o.Comment) {
		return false
	}
	e.Comment = o.Comment
	return e == o
}
