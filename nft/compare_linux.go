package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// CompareOptions are the options of Compare. The zero value is for a wanted table that does not change during Compare.
type CompareOptions struct {
	// Guard, if set, runs each piece of work that reads the wanted table, for example under a lock. An error of Guard ends
	// Compare.
	Guard func(work func()) error
	// ThroughCommits continues after a concurrent commit, instead of returning ErrGenerationMoved.
	ThroughCommits bool
	// RefillFrom, if not 0, is the number of elements from which on a map with values is not compared: the transaction
	// flushes it and adds all wanted elements. The kernel's time for a listing grows with the square of a set's length, and
	// for refilling with the length. The wanted table must not change until the transaction is committed.
	RefillFrom int
}

// Compare lists the kernel's table and returns the transaction that turns it into want. The result is the same as of
// Diff after ReadTable, without a copy of the elements: memory holds the differences, and 11 to 23 bytes for each listed
// element. Compare reads only the catch-all of Dynamic sets, so packets cannot make it slow.
//
// With Guard, no lock need be held while the kernel lists. A piece of work is some hundred elements (tens of
// microseconds), or a whole set if elements are missing or another program has committed. Between two pieces, elements of
// the wanted sets may change if the same change is committed; the caller then ignores what Compare returns about
// them. After any other change of the wanted table, Guard must return an error without running the work.
//
// With ThroughCommits, commits to other tables do not disturb Compare, and a change after the listing has a
// generation of its own, for which the caller is notified. If there is a difference, Compare returns it together with
// ErrGenerationMoved.
//
// Compare ends with ctx's error as soon as ctx is done, and with ErrGenerationMoved after a concurrent commit
// (unless ThroughCommits is set) or when the kernel's count of a set shows that the listing was cut short (kernel
// 6.15). It asks the kernel by key for missing elements, up to 1,000 of a set. The connection is busy all the while,
// so give Compare one of its own: see Another.
func (c *Conn) Compare(ctx context.Context, want *Table, options CompareOptions) (Transaction, error) {
	if options.Guard == nil {
		options.Guard = func(work func()) error {
			work()
			return nil
		}
	}
	run := comparison{
		reader: reader{conn: c, ctx: ctx, family: want.Family, table: want.Name, throughCommits: options.ThroughCommits},
		guard:  options.Guard, want: want, refillFrom: options.RefillFrom,
	}
	tx, err := run.run()
	if errors.Is(err, unix.ENOENT) {
		err = ErrGenerationMoved // deleted under our hands
	}
	if err != nil {
		return tx, fmt.Errorf("nft: compare table %s %s: %w", want.Family, want.Name, err)
	}
	return tx, nil
}

type comparison struct {
	reader reader
	guard  func(func()) error
	want   *Table
	// refillFrom is CompareOptions.RefillFrom.
	refillFrom int
}

func (c *comparison) run() (Transaction, error) {
	var have *Table
	held, err := c.reader.contents()
	if err != nil {
		return Transaction{}, err
	}
	if held != nil {
		have = held.finish()
	}
	var d *delta
	var pairs []setPair
	// If the table is to be replaced, d refers to all elements of the wanted sets.
	if err := c.guard(func() { d, pairs = beginDiff(have, c.want) }); err != nil {
		return Transaction{}, err
	}
	for _, pair := range pairs {
		if err := c.compareElements(d, pair); err != nil {
			return Transaction{}, err
		}
	}
	tx := d.transaction()
	return tx, c.outcome(tx)
}

func (c *comparison) outcome(tx Transaction) error {
	err := c.reader.steady()
	if c.reader.throughCommits && tx.Empty() && errors.Is(err, ErrGenerationMoved) {
		return nil
	}
	return err
}

func (c *comparison) compareElements(d *delta, pair setPair) error {
	if pair.have == nil {
		return c.guard(func() { d.compareElements(nil, pair.want) })
	}
	if c.refills(pair) {
		d.add(Step{Op: FlushSet, Set: pair.want})
		d.add(Step{Op: AddElements, Set: pair.want, All: true})
		return nil
	}
	e := &elementComparison{set: pair.want}
	var err error
	if pair.want.Dynamic {
		err = c.reader.element(pair.want, Element{Key: CatchAll}, c.taking(e))
	} else {
		err = c.compareListing(e, pair.have)
	}
	if err != nil {
		return err
	}
	d.addElements(pair.want, e.gone, e.added)
	return nil
}

// refills reports whether a set is refilled. Elements with verdicts would have the kernel validate the table, those with
// counters would lose their counts, and packets fill Dynamic sets.
func (c *comparison) refills(pair setPair) bool {
	want := pair.want
	return c.refillFrom > 0 && max(pair.have.kernel.count, want.Len()) >= c.refillFrom && want.Data != nil && !want.Dynamic && !want.Counter
}

// taking returns a function that compares the elements of a message in one piece of work.
func (c *comparison) taking(e *elementComparison) func(reply) error {
	return func(m reply) (err error) {
		if refused := c.guard(func() { err = eachElement(m.Data, e.take) }); refused != nil {
			return refused
		}
		return err
	}
}

func (c *comparison) compareListing(e *elementComparison, have *Set) error {
	e.seen = newSeenKeys(max(have.kernel.count, 0))
	if err := c.reader.elementMessages(e.set.Name, c.taking(e)); err != nil {
		return err
	}
	var missing []Element
	if err := c.guard(func() { missing = e.missing(c.reader.moved) }); err != nil {
		return err
	}
	if len(missing) > maxAsked {
		// Either another program emptied the set, or the listing was cut short. The kernel's count decides.
		if err := have.complete(e.seen.len()); err != nil {
			return err
		}
	} else if err := c.askFor(e, missing); err != nil {
		return err
	}
	if err := c.guard(func() { e.addMissing(missing) }); err != nil {
		return err
	}
	if e.seen.len() >= have.kernel.count || have.complete(e.seen.len()) == nil {
		return nil
	}
	return c.countAgain(e)
}

// maxAsked bounds the elements of one set that the kernel is asked for one by one. Each takes some microseconds.
const maxAsked = 1000

// askFor asks the kernel for elements that it has not listed. They may be there nevertheless: if an element is
// deleted between two parts of a listing, or a set that has just grown is rehashed, the second part skips too many.
func (c *comparison) askFor(e *elementComparison, missing []Element) error {
	for _, want := range missing {
		if err := c.reader.element(e.set, want, c.taking(e)); err != nil {
			return err
		}
	}
	return nil
}

// countAgain handles a listing with fewer elements than the kernel counted before it. Either elements were deleted
// during the listing, or the listing omitted elements, perhaps of other programs. So under the guard it compares the kernel's count
// (kernel 6.15) with the number of known elements.
func (c *comparison) countAgain(e *elementComparison) (err error) {
	refused := c.guard(func() {
		var now int
		if now, err = c.reader.count(e.set); err == nil && now > e.known() {
			err = errIncomplete
		}
	})
	return errors.Join(refused, err)
}

type elementComparison struct {
	set *Set
	// seen holds the keys that were listed, without the catch-all; nil for a Dynamic set.
	seen *seenKeys
	// found counts the listed keys that are wanted, with any value.
	found       int
	catchAll    bool
	gone, added []Element
	key         [maxKey]byte
}

// maxKey is the longest key that the kernel takes (NFT_DATA_VALUE_MAXLEN).
const maxKey = 64

func (e *elementComparison) take(r *rawElement) error {
	key := append(append(e.key[:0], r.key...), "\x00\x00\x00"[:netlinkattr.Padded(len(r.key))-len(r.key)]...)
	switch {
	case r.catchAll():
		key = append(e.key[:0], CatchAll...)
		e.catchAll = true
	case e.seen == nil || !e.seen.add(key):
		return nil // of a Dynamic set; or listed twice, which happens while the kernel rehashes
	}
	want, wanted := e.set.elementAt(key)
	if wanted {
		if !r.catchAll() {
			e.found++
		}
		if r.unknownIn(e.set) == "" && r.is(&want) {
			return nil
		}
		want.Key = Data(key)
		e.added = append(e.added, want)
	}
	e.gone = append(e.gone, r.element())
	return nil
}

// missing returns the wanted elements that were not listed. If there was no concurrent commit and no element is missing,
// it does not walk the set.
func (e *elementComparison) missing(committed bool) (missing []Element) {
	if catchAll, wanted := e.set.Element(CatchAll); wanted && !e.catchAll {
		missing = append(missing, catchAll)
	}
	if !committed && e.found == e.set.countable() {
		return missing
	}
	for want := range e.set.each() {
		if want.Key != CatchAll && !e.seen.has(want.Key) {
			missing = append(missing, want)
		}
	}
	return missing
}

// known counts the elements that the kernel is known to have: wanted elements that are not missing, and unwanted
// elements.
func (e *elementComparison) known() int {
	n := e.set.countable()
	replaced := map[Data]bool{}
	for _, g := range e.gone {
		if _, wanted := e.set.Element(g.Key); !wanted && g.Key != CatchAll {
			n++
		}
		replaced[g.Key] = true
	}
	for _, a := range e.added {
		if _, wanted := e.set.Element(a.Key); wanted && !replaced[a.Key] && a.Key != CatchAll {
			n-- // missing; an element in both lists is there, with another value
		}
	}
	return n
}

// addMissing notes the missing elements that the kernel has not returned since, and that are still wanted.
func (e *elementComparison) addMissing(missing []Element) {
	for _, m := range missing {
		if m.Key == CatchAll && e.catchAll || m.Key != CatchAll && e.seen.has(m.Key) {
			continue
		}
		if want, wanted := e.set.Element(m.Key); wanted {
			e.added = append(e.added, want)
		}
	}
}

// seenKeys is the set of keys that a listing had. It holds a hash of 64 bits of each, so a key takes 11 to 23 bytes,
// of any length. Once in 500 million checks of 250,000 elements, two keys have the same hash. Such a check misses the
// second element.
type seenKeys struct {
	seed   maphash.Seed
	hashes map[keyHash]struct{}
}

// keyHash is an array because a uint64 would be aligned in the map, and take seven bytes more.
type keyHash [8]byte

func newSeenKeys(n int) *seenKeys {
	return &seenKeys{maphash.MakeSeed(), make(map[keyHash]struct{}, n)}
}

// add reports whether the key is new.
func (s *seenKeys) add(key []byte) bool {
	before := s.len()
	s.hashes[hashOf(maphash.Bytes(s.seed, key))] = struct{}{}
	return s.len() > before
}

func (s *seenKeys) has(key Data) bool {
	_, has := s.hashes[hashOf(maphash.String(s.seed, string(key)))]
	return has
}

func (s *seenKeys) len() int { return len(s.hashes) }

func hashOf(sum uint64) (h keyHash) {
	binary.NativeEndian.PutUint64(h[:], sum)
	return h
}
