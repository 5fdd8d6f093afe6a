package nft

import (
	"bytes"
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
)

// Set is an nft set or map with its elements. It is a map when Data or Verdicts is set.
type Set struct {
	// Name is 1 to 255 bytes long.
	Name string
	// Key is the type of the keys, as expressions that have that type; nft prints them as "typeof".
	Key Concat
	// Data is the type of a map's values; nil in a set and in a verdict map.
	Data Concat
	// Verdicts makes the map's values verdicts.
	Verdicts bool
	// Interval lets the last field of an element's key be a range, given by KeyEnd. Ranges must not overlap. Key
	// must have at least two fields (nft's "concatenation with ranges", kernel 5.6).
	Interval bool
	// Dynamic lets packets add elements to the set, with an Update statement, each with a timeout (nft's flags
	// dynamic and timeout). ReadTable leaves those elements out, Diff does not change them, and ReadElements returns
	// them.
	Dynamic bool
	// Size is the largest number of elements; 0 means no limit, or DefaultSize in a Dynamic set. A transaction that
	// exceeds it is refused with ErrSetFull; elements that the transaction deletes first make room. With a limit the
	// kernel chooses a hash table of fixed length, which makes some commits faster. Packets add nothing beyond the
	// limit of a Dynamic set, which keeps its first Size: it would lose its elements otherwise.
	Size uint32
	// Counter makes each element count the packets for which a lookup found it, and their bytes (nft's "counter" of
	// a set, kernel 5.7; see FeatureCounters). Conn.Counts returns the counts. An element that is replaced starts from
	// 0.
	Counter bool
	// Comment is shown by nft; at most 127 bytes.
	Comment string

	elements map[Data]stored
	// kernel has what only the kernel knows of a set that was read.
	kernel kernelSet
}

// kernelSet holds the attributes that only a set of the kernel has, not a wanted one.
type kernelSet struct {
	// anonymous says that the set belongs to a rule. The kernel deletes it with that rule.
	anonymous bool
	// count is the kernel's count of elements when the set was read (kernel 6.15); -1 if there was none.
	count int
	// timeout is the timeout of elements without one of their own.
	timeout time.Duration
	// unknown names, by key, a property of an element that an Element cannot express.
	unknown map[Data]string
	// partial says that elements were left in the kernel, or out of a recording of another program's table.
	partial bool
	// bounds says that the kernel has a range of keys as two elements: its first key, and the first key after it. edges are
	// these elements, until the table is read. fields are the lengths of the key's fields, if each field can be a range.
	bounds bool
	edges  []edge
	fields []int
}

// edge is the beginning of a range, or the first key after it.
type edge struct {
	key   Data
	isEnd bool
}

// setRanges sets the last key of each element: the key before the next edge.
func (s *Set) setRanges() {
	edges := s.kernel.edges
	s.kernel.edges = nil
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.key, b.key) })
	for i, begin := range edges {
		e, there := s.Element(pad(begin.key))
		if begin.isEnd || !there {
			continue
		}
		last := Data(bytes.Repeat([]byte{0xff}, len(begin.key)))
		for _, next := range edges[i:] {
			if next.key > begin.key {
				last = before(next.key)
				break
			}
		}
		if last != begin.key {
			e.KeyEnd = pad(last)
			s.putRead(e, s.kernel.unknown[e.Key])
		}
	}
}

// before returns the number before a number in network byte order.
func before(number Data) Data {
	b := []byte(number)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]--; b[i] != 0xff {
			break
		}
	}
	return Data(b)
}

// Partial reports whether the set, which was read, may have elements in the kernel that it does not have here: see
// Conn.Lookup.
func (s *Set) Partial() bool { return s.kernel.partial }

// Count is the kernel's count of elements when the set was read (kernel 6.15); -1 if there was none.
func (s *Set) Count() int { return s.kernel.count }

// Find returns the element that a packet with the key finds: the element with the key, an element whose range contains the
// key, or the catch-all.
func (s *Set) Find(key Data) (Element, bool) {
	if e, found := s.Element(key); found && !e.expired() {
		return e, true
	}
	if s.Interval || s.kernel.bounds || s.kernel.fields != nil {
		for from, e := range s.elements {
			if e.rest != nil && e.rest.keyEnd != "" && s.inRange(from, e.rest.keyEnd, key) && !e.element(from).expired() {
				return e.element(from), true
			}
		}
	}
	return s.Element(CatchAll)
}

// expired reports whether the kernel has yet to remove an element.
func (e Element) expired() bool { return e.Timeout > 0 && e.Expires == 0 }

// inRange reports whether each field of key lies between the same fields of from and to.
func (s *Set) inRange(from, to, key Data) bool {
	at := 0
	for i := 0; at < len(key); i++ {
		length := len(key) - at
		if i < len(s.kernel.fields) {
			length = s.kernel.fields[i]
		} else if i < len(s.Key) && !s.isOpaque() {
			length = s.Key[i].dataType().length
		}
		end := min(at+length, len(key))
		if end > min(len(from), len(to)) || key[at:end] < from[at:end] || key[at:end] > to[at:end] {
			return false
		}
		at = netlinkattr.Padded(end)
	}
	return true
}

// Timeout is the timeout of elements without one of their own, in a set that was read; 0 for none.
func (s *Set) Timeout() time.Duration { return s.kernel.timeout }

// DefaultSize is the size that the kernel gives to a Dynamic set without one. Such a set starts small and grows.
const DefaultSize = 1<<16 - 1

// IsMap reports whether nft calls the set a map.
func (s *Set) IsMap() bool { return s.Data != nil || s.Verdicts }

// Kind returns nft's word for it: "map" or "set".
func (s *Set) Kind() string {
	if s.IsMap() {
		return "map"
	}
	return "set"
}

// Len is the number of elements.
func (s *Set) Len() int { return len(s.elements) }

// countable is the number of elements that the kernel counts: all but a catch-all.
func (s *Set) countable() int {
	if _, has := s.elements[CatchAll]; has {
		return s.Len() - 1
	}
	return s.Len()
}

// Element returns the element with the key.
func (s *Set) Element(key Data) (Element, bool) {
	e, ok := s.elements[key]
	if !ok {
		return Element{}, false
	}
	return e.element(key), true
}

// elementAt is Element for a key in a buffer. It does not allocate, and the element that it returns has no Key.
func (s *Set) elementAt(key []byte) (Element, bool) {
	e, ok := s.elements[Data(key)]
	return e.element(""), ok
}

// Put adds an element or replaces the one with its key.
func (s *Set) Put(e Element) {
	if s.elements == nil {
		s.elements = make(map[Data]stored)
	}
	s.elements[e.Key] = store(e)
	delete(s.kernel.unknown, e.Key)
}

// Grow makes room for n elements in a set that has none.
func (s *Set) Grow(n int) {
	if len(s.elements) == 0 {
		s.elements = make(map[Data]stored, n)
	}
}

// Remove removes the element with the key, if there is one.
func (s *Set) Remove(key Data) {
	delete(s.elements, key)
	delete(s.kernel.unknown, key)
}

// Elements returns all elements in the order of their keys.
func (s *Set) Elements() []Element {
	return slices.SortedFunc(s.each(), compareElements)
}

func (s *Set) each() iter.Seq[Element] {
	return func(yield func(Element) bool) {
		for key, e := range s.elements {
			if !yield(e.element(key)) {
				return
			}
		}
	}
}

// sameType reports whether two sets differ in nothing but their name and elements.
func (s *Set) sameType(o *Set) bool {
	return s.Key.String() == o.Key.String() && s.Data.String() == o.Data.String() && s.Verdicts == o.Verdicts && s.Interval == o.Interval && s.Dynamic == o.Dynamic && s.Counter == o.Counter && (s.Dynamic || s.Size == o.Size) && sameComment(s.Comment, o.Comment)
}

// resizable reports whether two sets differ in nothing but their size, and one can replace the other. A Dynamic set
// would lose the elements that packets added.
func (s *Set) resizable(o *Set) bool {
	resized := *s
	resized.Size = o.Size
	return !s.Dynamic && resized.sameType(o)
}

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
	// Timeout is the lifetime of an element of a Dynamic set after packets last updated it, and Expires the rest of it.
	// Both are whole milliseconds, and 0 in other sets.
	Timeout, Expires time.Duration
	// Stateful says that the element was read and has an expression such as limit, which this package does not write. A
	// packet that finds it may find nothing, as the expression decides.
	Stateful bool
}

// stored is an element as a Set keeps it, without its key. Most elements have a value at most. So the other fields
// are apart: elements are most of the memory of a program with many of them.
type stored struct {
	value Data
	rest  *elementRest // nil if it would be zero
}

type elementRest struct {
	keyEnd           Data
	verdict          Verdict
	comment          string
	timeout, expires time.Duration
	stateful         bool
}

func store(e Element) stored {
	s := stored{value: e.Value}
	if rest := (elementRest{e.KeyEnd, e.Verdict, e.Comment, e.Timeout, e.Expires, e.Stateful}); rest != (elementRest{}) {
		kept := rest // the address of rest would move it to the heap for each element
		s.rest = &kept
	}
	return s
}

func (s stored) element(key Data) Element {
	e := Element{Key: key, Value: s.value}
	if r := s.rest; r != nil {
		e.KeyEnd, e.Verdict, e.Comment, e.Timeout, e.Expires = r.keyEnd, r.verdict, r.comment, r.timeout, r.expires
		e.Stateful = r.stateful
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
