package model

import (
	"cmp"
	"errors"
	"iter"
	"slices"
)

// DiffStore holds, by key, the wanted and the applied records of a dataplane (virtual servers, map entries, lines of a
// file), and returns the differences. A backend may compute all its records anew with each change, and still touch only
// the differences:
//
//	store := model.NewDiffStore[string, int]()
//
//	store.Begin() // a full state follows; without Begin it is an increment
//	store.Set("web", 80)
//	store.Set("dns", 53)
//
//	for key := range store.Deleted() { … }        // in order of the keys
//	for key, value := range store.Updated() { … } // in order of the keys
//	store.Commit() // only if all of that succeeded; otherwise the same differences come again
//
// For dataplanes that take differences one by one, Apply does the last three steps, and keeps failed records as
// differences. A difference is between the last Commit and the wanted state, however often the store was written in
// between.
//
// The store keeps its values. A later change to memory behind a value would be in both states, and so in no difference.
// A DiffStore is not safe for concurrent use.
type DiffStore[K comparable, V any] struct {
	compare func(a, b K) int
	equal   func(a, b V) bool
	entries map[K]*diffEntry[V]
	// changed holds the entries that differ. In a full state that has just been written it lacks deletions. An emptied
	// map is replaced, because a walk through a once large map stays slow.
	changed map[K]*diffEntry[V]
	// began says that a full state has begun: changed lacks deletions.
	began bool
}

// diffEntry is the state of a key.
type diffEntry[V any] struct {
	// want is valid only if isWanted is set.
	want, applied V
	isWanted      bool
	// present says that the dataplane may have a value under the key. known says that the value is applied.
	present, known bool
}

// NewDiffStore returns an empty DiffStore whose keys have their natural order and whose values are compared with ==.
// Pointers are equal if they point to the same variable. NewDiffStoreFunc can compare the variables.
func NewDiffStore[K cmp.Ordered, V comparable]() *DiffStore[K, V] {
	return NewDiffStoreFunc(cmp.Compare[K], func(a, b V) bool { return a == b })
}

// NewDiffStoreFunc returns an empty DiffStore that orders keys with compare, which is 0 only for keys that are equal,
// and compares values with equal. Both functions run on the caller's goroutine and must not use the store.
func NewDiffStoreFunc[K comparable, V any](compare func(a, b K) int, equal func(a, b V) bool) *DiffStore[K, V] {
	return &DiffStore[K, V]{compare: compare, equal: equal, entries: map[K]*diffEntry[V]{}, changed: map[K]*diffEntry[V]{}}
}

// Begin starts a full state: from now on only keys of later calls of Set are wanted. Begin may be called again in the
// middle of a full state.
func (s *DiffStore[K, V]) Begin() {
	for _, e := range s.entries {
		e.isWanted = false
	}
	s.began = true
}

// Set says that the dataplane should have value under key. The last Set of a key counts. A value that is equal to
// the applied one costs one look-up and one comparison.
func (s *DiffStore[K, V]) Set(key K, value V) {
	e := s.entry(key)
	if e.known && s.equal(e.applied, value) {
		value = e.applied // one of two equal values can be freed
	}
	e.want, e.isWanted = value, true
	s.note(key, e)
}

// Delete says that the dataplane should have no value under key.
func (s *DiffStore[K, V]) Delete(key K) {
	if e := s.entries[key]; e != nil {
		e.isWanted = false
		s.note(key, e)
	}
}

// Get returns the wanted value of key. After Begin, only keys of later calls of Set have a wanted value.
func (s *DiffStore[K, V]) Get(key K) (value V, ok bool) {
	if e := s.entries[key]; e != nil && e.isWanted {
		return e.want, true
	}
	return value, false
}

// Changed reports whether there is any difference.
func (s *DiffStore[K, V]) Changed() bool {
	s.noteDeletions()
	return len(s.changed) > 0
}

// Updated yields the wanted keys and values that the dataplane lacks or has with another value, ordered by key.
func (s *DiffStore[K, V]) Updated() iter.Seq2[K, V] {
	return s.differences(true, func(e *diffEntry[V]) V { return e.want })
}

// Deleted yields the keys that the dataplane has and should not have, ordered by key, with the last applied value; the
// zero value if it was never known. Apply Deleted before Updated if a new record may need a resource of a deleted
// record.
func (s *DiffStore[K, V]) Deleted() iter.Seq2[K, V] {
	return s.differences(false, func(e *diffEntry[V]) V { return e.applied })
}

// differences yields the changed entries that are wanted, or the changed entries that are not.
func (s *DiffStore[K, V]) differences(wanted bool, value func(*diffEntry[V]) V) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		s.noteDeletions()
		var keys []K
		for key, e := range s.changed {
			if e.isWanted == wanted {
				keys = append(keys, key)
			}
		}
		slices.SortFunc(keys, s.compare)
		for _, key := range keys {
			if e := s.changed[key]; e != nil && !yield(key, value(e)) {
				return
			}
		}
	}
}

// Apply applies the differences one by one: it calls remove for each of Deleted, then set for each of Updated, in
// order. It commits each success. A failure does not stop the others. A failed record may be half done, so it stays a
// difference, even if its previous value becomes wanted again. The error joins the errors of remove and set.
func (s *DiffStore[K, V]) Apply(remove, set func(key K, value V) error) error {
	var errs []error
	try := func(apply func(K, V) error) func(K, V) bool {
		return func(key K, value V) bool {
			e := s.changed[key]
			if err := apply(key, value); err != nil {
				errs = append(errs, err)
				e.present, e.known = true, false
			} else {
				s.commit(key, e)
				delete(s.changed, key)
			}
			return true
		}
	}
	s.Deleted()(try(remove))
	s.Updated()(try(set))
	if len(s.changed) == 0 {
		s.changed = map[K]*diffEntry[V]{}
	}
	return errors.Join(errs...)
}

// Commit records that the dataplane has all wanted values and nothing else.
func (s *DiffStore[K, V]) Commit() {
	s.noteDeletions()
	for key, e := range s.changed {
		s.commit(key, e)
	}
	s.changed = map[K]*diffEntry[V]{}
}

// Adopt records that the dataplane has value under key. A backend that can read its dataplane calls it for each record
// when it starts, so that its first differences are small.
func (s *DiffStore[K, V]) Adopt(key K, value V) {
	e := s.entry(key)
	e.applied, e.present, e.known = value, true, true
	s.note(key, e)
}

// Invalidate records that the dataplane's state is unknown, as after a transaction that failed half way. All wanted
// keys become updates. Keys that were applied and are not wanted stay deletions, though the dataplane may not have
// them.
func (s *DiffStore[K, V]) Invalidate() {
	for key, e := range s.entries {
		e.known = false
		s.note(key, e)
	}
}

func (s *DiffStore[K, V]) entry(key K) *diffEntry[V] {
	e := s.entries[key]
	if e == nil {
		e = &diffEntry[V]{}
		s.entries[key] = e
	}
	return e
}

// note updates changed after a change to e, and deletes e if it is neither wanted nor present.
func (s *DiffStore[K, V]) note(key K, e *diffEntry[V]) {
	if !e.isWanted {
		var none V
		e.want = none
	}
	switch {
	case !e.isWanted && !e.present:
		delete(s.entries, key)
		delete(s.changed, key)
	case e.isWanted && e.known && s.equal(e.applied, e.want):
		delete(s.changed, key)
	default:
		s.changed[key] = e
	}
}

// noteDeletions ends a full state: keys without a call of Set since Begin become deletions.
func (s *DiffStore[K, V]) noteDeletions() {
	if !s.began {
		return
	}
	s.began = false
	for key, e := range s.entries {
		if !e.isWanted {
			s.note(key, e)
		}
	}
}

// commit makes the wanted value of key the applied one. The caller removes e from changed.
func (s *DiffStore[K, V]) commit(key K, e *diffEntry[V]) {
	if !e.isWanted {
		delete(s.entries, key)
		return
	}
	e.applied, e.present, e.known = e.want, true, true
}

// PortStore is a DiffStore of Service ports. A full state that repeats all ports, such as after a reconnection, has
// only real differences.
type PortStore struct {
	*DiffStore[PortID, *ServicePort]
}

// NewPortStore returns an empty PortStore, ordered by [PortID.Compare], which compares ports by [ServicePort.Equal].
func NewPortStore() PortStore {
	return PortStore{NewDiffStoreFunc(PortID.Compare, (*ServicePort).Equal)}
}

// Write writes the ports of changes: a full state if changes is Full, else an increment. It ignores the Node and the
// ServiceCIDRs.
func (s PortStore) Write(changes *Changes) {
	if changes.Full {
		s.Begin()
	}
	for id, port := range changes.Ports {
		if port == nil {
			s.Delete(id)
		} else {
			s.Set(id, port)
		}
	}
}
