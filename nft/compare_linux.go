package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Comparison says how Compare goes about it. The zero value is a comparison that nothing disturbs, with a table that
// does not change meanwhile.
type Comparison struct {
	// Guard, if set, is called to run each piece of work that looks at the elements of the wanted table: some hundred
	// of them in some tens of microseconds, and once all of a set if elements are missing or somebody has committed
	// meanwhile. So a lock need not be held while the kernel lists. A Guard that finds that the wanted table has
	// changed since Compare was called does not run the work but returns an error, and Compare ends with it.
	Guard func(work func()) error
	// ThroughCommits goes on when somebody commits meanwhile. A commit that does not concern the table does not disturb
	// the listing of it. If the table is then found as it is wanted, it was: what was changed after it was
	// looked at makes yet another generation. If it is not, Compare returns what it found and ErrGenerationMoved.
	ThroughCommits bool
}

// Compare lists the table of the kernel and returns the transaction that turns it into want: what Diff would return for
// what ReadTable would read, but without a copy of the elements. Only the differences are held, and eleven to
// twenty-two bytes for each element. Of sets that packets add to no elements are listed, so that nothing that packets
// do makes it last.
//
// It ends as soon as ctx is done, with that error, and as soon as somebody commits anything, with ErrGenerationMoved;
// also when the kernel's count of a set says that it listed a part of it only (kernel 6.15). An element that was not
// listed is asked for by its key before it counts as missing. The connection is busy meanwhile, so it should be one of
// its own: see Another.
func (c *Conn) Compare(ctx context.Context, want *Table, how Comparison) (Transaction, error) {
	if how.Guard == nil {
		how.Guard = func(work func()) error {
			work()
			return nil
		}
	}
	run := comparison{reader: reader{conn: c, ctx: ctx, throughCommits: how.ThroughCommits}, guard: how.Guard, want: want}
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
}

func (c *comparison) run() (Transaction, error) {
	have, err := c.readHeld()
	if err != nil {
		return Transaction{}, err
	}
	var tx Transaction
	var d *delta
	var pairs []setPair
	// What is added whole is taken from the wanted sets here.
	if err := c.guard(func() { tx, d, pairs = beginDiff(have, c.want) }); err != nil {
		return Transaction{}, err
	}
	if d != nil {
		for _, pair := range pairs {
			if err := c.compareElements(d, pair); err != nil {
				return Transaction{}, err
			}
		}
		tx = d.transaction()
	}
	return tx, c.settle(tx)
}

// readHeld reads the table without elements; nil if there is none.
func (c *comparison) readHeld() (*Table, error) {
	t, err := c.reader.header(c.want.Family, c.want.Name)
	if err != nil || t == nil {
		return nil, err
	}
	for _, part := range []func(*Table) error{c.reader.sets, c.reader.objects, c.reader.flowtables, c.reader.chains, c.reader.rules} {
		if err := part(t); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// settle says whether tx is what was wanted to know.
func (c *comparison) settle(tx Transaction) error {
	err := c.reader.steady(c.want)
	if c.reader.throughCommits && tx.Empty() && errors.Is(err, ErrGenerationMoved) {
		return nil
	}
	return err
}

func (c *comparison) compareElements(d *delta, pair setPair) error {
	if pair.have == nil {
		return c.guard(func() { d.compareElements(nil, pair.want) })
	}
	e := elementComparison{set: pair.want}
	if pair.want.Dynamic {
		if err := c.reader.element(c.want, pair.want, Element{Key: CatchAll}, c.taking(&e)); err != nil {
			return err
		}
	} else if err := c.compareListing(&e, pair.have); err != nil {
		return err
	}
	d.deleteElements = append(d.deleteElements, setElements{set: pair.want, elements: e.gone})
	d.addElements = append(d.addElements, setElements{set: pair.want, elements: e.added})
	return nil
}

// taking returns a function that compares the elements of a message at a stretch.
func (c *comparison) taking(e *elementComparison) func(data []byte) error {
	return func(data []byte) (err error) {
		if refused := c.guard(func() { err = eachElement(data, e.take) }); refused != nil {
			return refused
		}
		return err
	}
}

// compareListing lists the elements of a set and compares them.
func (c *comparison) compareListing(e *elementComparison, have *Set) error {
	e.seen = newSeenKeys(max(have.kernelCount, 0))
	if err := c.reader.elementMessages(c.want.Family, c.want.Name, e.set.Name, c.taking(e)); err != nil {
		return err
	}
	var missing []Element
	if err := c.guard(func() { missing = e.missing(c.reader.moved) }); err != nil {
		return err
	}
	if len(missing) > maxAsked {
		// Somebody emptied the set, or the listing was cut short. The kernel's count tells which.
		if err := have.complete(e.seen.n); err != nil {
			return err
		}
	} else if err := c.askFor(e, missing); err != nil {
		return err
	}
	if err := c.guard(func() { e.addMissing(missing) }); err != nil {
		return err
	}
	if e.seen.n >= have.kernelCount || have.complete(e.seen.n) == nil {
		return nil
	}
	return c.countAgain(e)
}

// maxAsked is how many elements the kernel is asked for one by one, which takes it some microseconds each.
const maxAsked = 1000

// askFor asks the kernel for elements that it has not listed. A listing leaves elements out that are there: each piece
// of it begins after as many elements of the hash as were listed before. An element that goes meanwhile has the next
// piece begin one too late, and a set that has grown is rehashed.
func (c *comparison) askFor(e *elementComparison, missing []Element) error {
	for _, want := range missing {
		if err := c.reader.element(c.want, e.set, want, c.taking(e)); err != nil {
			return err
		}
	}
	return nil
}

// countAgain is for a listing with fewer elements than the kernel counted before it. Either elements went meanwhile, or
// the listing left some out, among which may be foreign ones. So the kernel's count (kernel 6.15) is compared with what
// is wanted and found at one moment, which the guard holds still.
func (c *comparison) countAgain(e *elementComparison) (err error) {
	refused := c.guard(func() {
		var now int
		if now, err = c.reader.count(c.want, e.set); err == nil && now > e.known() {
			err = errIncomplete
		}
	})
	return errors.Join(refused, err)
}

// elementComparison compares a set as it is wanted with the elements that the kernel lists.
type elementComparison struct {
	set *Set
	// seen are the keys that were listed, without the catch-all; nil for a Dynamic set.
	seen *seenKeys
	// found is how many of them are wanted, if with another value.
	found       int
	catchAll    bool
	gone, added []Element
	key         [maxKey]byte
}

// maxKey is the longest key that the kernel takes (NFT_DATA_VALUE_MAXLEN).
const maxKey = 64

// take takes one element that the kernel has.
func (e *elementComparison) take(r *rawElement) error {
	key := append(append(e.key[:0], r.key...), "\x00\x00\x00"[:netlinkattr.Padded(len(r.key))-len(r.key)]...)
	switch {
	case r.catchAll():
		key = append(e.key[:0], CatchAll...)
		e.catchAll = true
	case e.seen == nil || !e.seen.add(key):
		return nil // listed twice, which happens while the kernel rehashes
	}
	want, wanted := e.set.elementAt(key)
	if wanted {
		if !r.catchAll() {
			e.found++
		}
		if r.foreign == "" && r.is(&want) {
			return nil
		}
		want.Key = Data(key)
		e.added = append(e.added, want)
	}
	e.gone = append(e.gone, r.element())
	return nil
}

// missing returns the wanted elements that were not listed. If nobody has committed meanwhile, it takes no time where
// there are none.
func (e *elementComparison) missing(committed bool) (missing []Element) {
	if catchAll, wanted := e.set.Element(CatchAll); wanted && !e.catchAll {
		missing = append(missing, catchAll)
	}
	if !committed && e.found == e.listable() {
		return missing
	}
	for want := range e.set.each() {
		if want.Key != CatchAll && !e.seen.has(want.Key) {
			missing = append(missing, want)
		}
	}
	return missing
}

// listable is how many elements are wanted that the kernel counts: all but a catch-all.
func (e *elementComparison) listable() int {
	n := e.set.Len()
	if _, wanted := e.set.Element(CatchAll); wanted {
		n--
	}
	return n
}

// known is how many elements the kernel has as far as is known: those that are wanted, without the missing ones, and
// foreign ones.
func (e *elementComparison) known() int {
	n := e.listable()
	replaced := map[Data]bool{}
	for _, g := range e.gone {
		if _, wanted := e.set.Element(g.Key); !wanted && g.Key != CatchAll {
			n++
		}
		replaced[g.Key] = true
	}
	for _, a := range e.added {
		if _, wanted := e.set.Element(a.Key); wanted && !replaced[a.Key] && a.Key != CatchAll {
			n-- // what is in both is there with another value
		}
	}
	return n
}

// addMissing notes those of the missing elements that the kernel has not handed over since, and that are still wanted.
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
