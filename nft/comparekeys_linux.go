package nft

import (
	"errors"
	"iter"
	"maps"
	"reflect"
	"slices"
	"sync"
)

// A listing takes the kernel time in proportion to the square of a set's length, and a lookup by key always the same
// time. So in a large set, Compare asks for the wanted elements by their keys. If the kernel counts no more elements
// than it has returned, there are no others.

// askFrom is how many elements make a listing take as long as asking for each of them: 0.25 s on the machine of
// docs/measurements.md.
const askFrom = 1 << 16

// fasterByKey reports whether asking for n keys of a set takes less time than listing it.
func (c *comparison) fasterByKey(have *Set, n int) bool {
	count := int64(have.kernelCount)
	return count >= 0 && int64(n)*int64(c.reader.conn.askFrom) <= count*count
}

// staleKeys returns the keys of elements that are not wanted and that the set may have, according to
// Comparison.StaleKeys. It reports false if the set is to be listed, because that is faster, or because it has elements
// of which nobody knows the key.
func (c *comparison) staleKeys(have, want *Set, d *delta) (stale map[Data]bool, ask bool) {
	if want.Interval || !c.fasterByKey(have, want.Len()) {
		return nil, false
	}
	stale = map[Data]bool{}
	if c.stale != nil {
		keys := 0
		for key := range c.stale(want, d.deletedElements()) {
			// More keys than the set has elements come from what others have put into the smaller sets.
			if keys++; keys > 2*have.kernelCount {
				return nil, false
			}
			if _, wanted := want.elements[key]; wanted || len(key) != want.Key.Len() {
				continue
			}
			if stale[key] = true; !c.fasterByKey(have, want.Len()+len(stale)) {
				return nil, false
			}
		}
	}
	return stale, have.kernelCount <= want.Len()+len(stale)
}

// deletedElements returns the elements to delete, with their sets.
func (d *delta) deletedElements() iter.Seq2[*Set, Element] {
	return func(yield func(*Set, Element) bool) {
		for _, s := range d.steps {
			if s.Op != DeleteElements {
				continue
			}
			for e := range s.EachElement() {
				if !yield(s.Set, e) {
					return
				}
			}
		}
	}
}

// compareByKey asks for the wanted elements and those with stale keys. It reports whether it found all elements that
// the kernel counts.
func (c *comparison) compareByKey(e *elementComparison, stale map[Data]bool) (whole bool, err error) {
	e.byKey, e.stale = true, stale
	missing, err := c.askForAll(e)
	if err == nil {
		err = c.reader.element(e.set, Element{Key: CatchAll}, c.taking(e))
	}
	if err == nil {
		err = c.guard(func() { e.addMissing(append(missing, e.missingCatchAll()...)) })
	}
	if err == nil {
		err = c.countAgain(e)
	}
	if errors.Is(err, errIncomplete) || errors.Is(err, errNotAsked) {
		return false, nil
	}
	return err == nil, err
}

// errNotAsked says that the kernel did not answer as expected. Asking for many elements saves time and no more, so the
// set is listed then.
var errNotAsked = errors.New("the kernel was not asked")

// keyReaders is how many keyReaders share the work. Nearly all of it is the kernel's, and a start waits for it.
const keyReaders = 2

// askForAll asks for the wanted elements and those with stale keys, and returns the wanted ones that the kernel does not
// have.
func (c *comparison) askForAll(e *elementComparison) (missing []Element, err error) {
	var readers [keyReaders]*keyReader
	for i := range readers {
		r, err := c.reader.conn.namespace.openKeyReader(c.want, e.set)
		if err != nil {
			return nil, errors.Join(errNotAsked, err)
		}
		defer r.close()
		readers[i] = r
	}
	a := asking{comparison: c, elements: e, stale: slices.Collect(maps.Keys(e.stale))}
	if err := c.guard(func() { a.wanted = reflect.ValueOf(e.set.elements).MapRange() }); err != nil {
		return nil, err
	}
	var busy sync.WaitGroup
	for _, r := range readers {
		busy.Go(func() { a.ask(r) })
	}
	busy.Wait()
	return a.missing, a.err
}

// asking is what keyReaders share.
type asking struct {
	*comparison
	elements *elementComparison
	// mu guards the fields below, and what elements and the comparison note. It is held around the guard, which is called
	// by one keyReader at a time.
	mu sync.Mutex
	// wanted goes through the wanted elements; nil after the last one. Unlike a range loop it can pause while the set
	// changes, and unlike a coroutine it works on any thread.
	wanted  *reflect.MapIter
	stale   []Data
	missing []Element
	// raw is the memory of the element that is compared.
	raw rawElement
	err error
}

// ask asks until there are no more keys, or until an error.
func (a *asking) ask(r *keyReader) {
	for a.work(func() error {
		r.keys = a.next(r.keys[:0])
		return nil
	}) && len(r.keys) > 0 {
		failed := r.ask()
		a.work(func() error {
			if failed == nil {
				failed = r.eachAnswer(a.found, a.notFound)
			}
			if failed != nil && !errors.Is(failed, ErrGenerationMoved) && !errors.Is(failed, ErrInvalid) {
				return errors.Join(errNotAsked, failed)
			}
			return failed
		})
	}
}

// work does a piece of work under the guard. It reports whether there was no error, here or of another keyReader.
func (a *asking) work(do func() error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.err = a.reader.ctx.Err()
	}
	if a.err == nil {
		refused := a.guard(func() { a.err = do() })
		a.err = errors.Join(a.err, refused)
	}
	return a.err == nil
}

func (a *asking) found(m reply) error {
	if err := a.reader.note(m); err != nil {
		return err
	}
	return a.raw.decodeEach(m.Data, a.elements.take)
}

func (a *asking) notFound(key Data) {
	if want, wanted := a.elements.set.Element(key); wanted {
		a.missing = append(a.missing, want)
	}
}

// next appends the keys to ask for next.
func (a *asking) next(keys []Data) []Data {
	var key Data
	into := reflect.ValueOf(&key).Elem()
	for len(keys) < askedAtOnce && a.wanted != nil {
		if !a.wanted.Next() {
			a.wanted = nil
		} else if into.SetIterKey(a.wanted); key != CatchAll {
			keys = append(keys, key)
		}
	}
	n := min(askedAtOnce-len(keys), len(a.stale))
	keys, a.stale = append(keys, a.stale[:n]...), a.stale[n:]
	return keys
}
