package diffstore

import (
	"cmp"
	"errors"
	"iter"
	"maps"
	"slices"
)

// Store holds, by key, the wanted values of a dataplane and those that were last applied to it.
//
// The Store keeps the values that it gets. Nobody may modify afterwards what a value points to: such a change would be
// in both states, and so in no difference. A Store is not safe for concurrent use.
type Store[K comparable, V any] struct {
	compare func(a, b K) int
	equal   func(a, b V) bool
	entries map[K]*entry[V]
	// changed is the entries that differ, except for those that are unseen.
	changed map[K]*entry[V]
	// round is the number of the full state that is written, or was written last.
	round uint64
	// wanted counts the entries that are wanted in this round. unseen counts those that were wanted before it and have
	// not been written in it. Unless they are written, they are not wanted any more.
	wanted, unseen int
}

// entry is the state of a key.
type entry[V any] struct {
	want, applied V
	// round is the one in which the entry was last written. isWanted says that it then got the value want.
	round    uint64
	isWanted bool
	// present says that the dataplane may have a value under the key, known that this value is applied.
	present, known bool
}

// New returns an empty Store whose keys have their natural order and whose values are compared with ==. Two pointers
// are then equal only if they point to the same variable. Use NewFunc to compare the variables.
func New[K cmp.Ordered, V comparable]() *Store[K, V] {
	return NewFunc(cmp.Compare[K], func(a, b V) bool { return a == b })
}

// NewFunc returns an empty Store that orders keys with compare, which is 0 only for keys that are equal, and
// compares values with equal. Both functions are called with the Store's own goroutine and must not use the Store.
func NewFunc[K comparable, V any](compare func(a, b K) int, equal func(a, b V) bool) *Store[K, V] {
	return &Store[K, V]{compare: compare, equal: equal, entries: map[K]*entry[V]{}, changed: map[K]*entry[V]{}}
}

// Begin starts a full state: from now on only keys of later calls of Set are wanted. It takes the same time however
// large the Store is. A full state that was only half written can be begun again.
func (s *Store[K, V]) Begin() {
	s.round++
	s.unseen += s.wanted
	s.wanted = 0
}

// Set says that the dataplane should have value under key. The last Set of a key counts. A value that is equal to
// the one that was applied costs one look-up and one comparison.
func (s *Store[K, V]) Set(key K, value V) {
	e := s.write(key)
	if !e.isWanted {
		e.isWanted = true
		s.wanted++
	}
	if e.known && s.equal(e.applied, value) {
		value = e.applied // one of two equal values can be freed
	}
	e.want = value
	s.note(key, e)
}

// Delete says that the dataplane should have nothing under key.
func (s *Store[K, V]) Delete(key K) {
	if _, ok := s.entries[key]; !ok {
		return
	}
	e := s.write(key)
	if e.isWanted {
		s.wanted--
	}
	e.unwant()
	s.note(key, e)
}

// Get returns the wanted value of key. After Begin, only keys that were Set since have one. So a caller
// that writes a full state can see whether it has written the key already.
func (s *Store[K, V]) Get(key K) (value V, ok bool) {
	if e := s.entries[key]; e != nil && e.isWanted && e.round == s.round {
		return e.want, true
	}
	return value, false
}

// Len returns the number of wanted keys.
func (s *Store[K, V]) Len() int { return s.wanted }

// All yields the wanted keys and values, ordered by key.
func (s *Store[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		s.endRound()
		for _, key := range slices.SortedFunc(maps.Keys(s.entries), s.compare) {
			if value, ok := s.Get(key); ok && !yield(key, value) {
				return
			}
		}
	}
}

// Applied returns the dataplane's value of key, according to Commit, CommitOne and Adopt. It returns false if there is
// none, or after Invalidate.
func (s *Store[K, V]) Applied(key K) (value V, ok bool) {
	if e := s.entries[key]; e != nil && e.known {
		return e.applied, true
	}
	return value, false
}

// Changed reports whether there is any difference.
func (s *Store[K, V]) Changed() bool {
	s.endRound()
	return len(s.changed) > 0
}

// Updated yields the wanted keys and values that the dataplane lacks or has with another value, ordered by key. The
// loop may call CommitOne and InvalidateOne.
func (s *Store[K, V]) Updated() iter.Seq2[K, V] {
	return s.differences(func(e *entry[V]) (V, bool) { return e.want, e.isWanted })
}

// Deleted yields the keys that the dataplane has and should not have, ordered by key, with the value that was last
// applied; the zero value if that was never known. Apply Deleted before Updated if a new record may need a resource of
// an old one. The loop may call CommitOne and InvalidateOne.
func (s *Store[K, V]) Deleted() iter.Seq2[K, V] {
	return s.differences(func(e *entry[V]) (V, bool) { return e.applied, !e.isWanted })
}

// differences yields those of the changed entries for which value returns true.
func (s *Store[K, V]) differences(value func(*entry[V]) (V, bool)) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		s.endRound()
		var keys []K
		for key, e := range s.changed {
			if _, ok := value(e); ok {
				keys = append(keys, key)
			}
		}
		slices.SortFunc(keys, s.compare)
		for _, key := range keys {
			e := s.changed[key]
			if e == nil {
				continue // committed by the loop
			}
			if v, ok := value(e); ok && !yield(key, v) {
				return
			}
		}
	}
}

// Apply applies the differences one by one: it calls remove for each of Deleted, then set for each of Updated, in
// order. It commits those that succeed. One that fails does not stop the others. It may be half done, so Apply calls
// InvalidateOne for it, and it is a difference again the next time. The error joins those of remove and set.
func (s *Store[K, V]) Apply(remove, set func(key K, value V) error) error {
	var errs []error
	try := func(apply func(K, V) error) func(K, V) bool {
		return func(key K, value V) bool {
			if err := apply(key, value); err != nil {
				errs = append(errs, err)
				s.InvalidateOne(key)
			} else {
				s.CommitOne(key)
			}
			return true
		}
	}
	s.Deleted()(try(remove))
	s.Updated()(try(set))
	return errors.Join(errs...)
}

// Commit tells the Store that the dataplane has all wanted values and nothing else.
func (s *Store[K, V]) Commit() {
	s.endRound()
	for key, e := range s.changed {
		s.commit(key, e)
	}
	s.dropChanged()
}

// CommitOne tells the Store that the dataplane has the wanted value of key, or none if none is wanted. It is for
// backends that apply differences one by one.
func (s *Store[K, V]) CommitOne(key K) {
	s.endRound()
	e := s.changed[key]
	if e == nil {
		return
	}
	s.commit(key, e)
	delete(s.changed, key)
	if len(s.changed) == 0 {
		s.dropChanged()
	}
}

// Adopt tells the Store that the dataplane has value under key. A backend that can read its dataplane calls it for each
// record when it starts, so that its first differences are small.
func (s *Store[K, V]) Adopt(key K, value V) {
	e := s.entry(key)
	e.applied, e.present, e.known = value, true, true
	s.note(key, e)
}

// Invalidate tells the Store that the dataplane's state is unknown. All wanted keys become updates. Keys that were
// applied and are not wanted stay deletions, though the dataplane may not have them.
func (s *Store[K, V]) Invalidate() {
	for key, e := range s.entries {
		e.known = false
		s.note(key, e)
	}
}

// InvalidateOne tells the Store that the dataplane's value of key is unknown, as after a failure half way. Otherwise a
// value that was half applied would be no difference once the previous value is wanted again.
func (s *Store[K, V]) InvalidateOne(key K) {
	e := s.entry(key)
	e.present, e.known = true, false
	s.note(key, e)
}

func (s *Store[K, V]) entry(key K) *entry[V] {
	e := s.entries[key]
	if e == nil {
		e = &entry[V]{round: s.round}
		s.entries[key] = e
	}
	return e
}

// write returns the entry of key as one of this round.
func (s *Store[K, V]) write(key K) *entry[V] {
	e := s.entry(key)
	if e.round != s.round {
		e.round = s.round
		if e.isWanted {
			e.isWanted = false
			s.unseen--
		}
	}
	return e
}

func (e *entry[V]) unwant() {
	var none V
	e.want, e.isWanted = none, false
}

// note updates changed after a change to e. It deletes an entry that is neither wanted nor present.
func (s *Store[K, V]) note(key K, e *entry[V]) {
	if !e.isWanted && !e.present {
		delete(s.entries, key)
		delete(s.changed, key)
		return
	}
	if e.isWanted && e.known && s.equal(e.applied, e.want) {
		delete(s.changed, key)
		return
	}
	s.changed[key] = e
}

// endRound makes deletions of the keys that were wanted before Begin and not written since. It walks all entries, but
// only once after a Begin, and not if all were written.
func (s *Store[K, V]) endRound() {
	if s.unseen == 0 {
		return
	}
	for key, e := range s.entries {
		if e.isWanted && e.round != s.round {
			e.unwant()
			s.note(key, e)
		}
	}
	s.unseen = 0
}

// commit makes the wanted value of key the applied one. The caller removes e from changed.
func (s *Store[K, V]) commit(key K, e *entry[V]) {
	if !e.isWanted {
		delete(s.entries, key)
		return
	}
	e.applied, e.present, e.known = e.want, true, true
}

// dropChanged makes a new map, because walking an empty one that was large once takes as long as before.
func (s *Store[K, V]) dropChanged() {
	s.changed = map[K]*entry[V]{}
}
