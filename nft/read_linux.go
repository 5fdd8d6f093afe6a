package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// readAttempts bounds the tries of a listing when commits keep coming between its parts.
const readAttempts = 10

// ReadTable reads a table with all its contents except the elements of Dynamic sets (see ReadElements). A table that
// does not exist is nil without an error. After a concurrent commit it starts again, up to ten times, then ends
// with ErrGenerationMoved. To check a large table use Compare, which makes no copy.
func (c *Conn) ReadTable(ctx context.Context, family Family, name string) (*Table, error) {
	t, _, err := c.readSteadily(reader{conn: c, ctx: ctx, family: family, table: name})
	return t, err
}

// Record is ReadTable, and keeps the kernel's messages. With dynamic it reads the elements of Dynamic sets too.
func (c *Conn) Record(ctx context.Context, family Family, name string, dynamic bool) (*Table, Recording, error) {
	return c.readSteadily(reader{conn: c, ctx: ctx, family: family, table: name, record: true, dynamic: dynamic})
}

// readSteadily reads a table with new copies of a reader until there is no concurrent commit.
func (c *Conn) readSteadily(from reader) (*Table, Recording, error) {
	for range readAttempts {
		r := from
		switch t, err := r.whole(); {
		case err == nil:
			return t, r.recording, nil
		case !errors.Is(err, ErrGenerationMoved):
			return nil, nil, fmt.Errorf("nft: read table %s %s: %w", r.family, r.table, err)
		}
	}
	return nil, nil, fmt.Errorf("nft: read table %s %s: %w, %d times",
		from.family, from.table, ErrGenerationMoved, readAttempts)
}

// HasTable reports whether the kernel has a table of that name.
func (c *Conn) HasTable(ctx context.Context, family Family, name string) (bool, error) {
	t, err := c.ReadHeader(ctx, family, name)
	return t != nil, err
}

// ReadHeader reads a table's comment, flags and owner. A table that does not exist is nil without an error.
func (c *Conn) ReadHeader(ctx context.Context, family Family, name string) (*Table, error) {
	r := reader{conn: c, ctx: ctx, family: family, table: name, throughCommits: true}
	t, err := r.header()
	if err != nil {
		return nil, fmt.Errorf("nft: look for table %s %s: %w", family, name, err)
	}
	return t, nil
}

// EachChain calls each with the chains of all tables of a family as they arrive, without their rules, and with the names
// of their tables. Commits of others do not end it, but then chains can be left out, and others come twice. each must
// not use the connection.
func (c *Conn) EachChain(ctx context.Context, family Family, each func(table string, c *Chain)) error {
	err := c.ask(ctx, query{typ: unix.NFT_MSG_GETCHAIN, flags: netlink.Dump, family: family}, func(m reply) error {
		if len(m.Data) < nfgenmsgLen {
			return netlinkattr.ErrShort
		}
		chain, err := decodeChain(m.Data)
		if err == nil {
			each(netlinkattr.Text(netlinkattr.Find(m.Data[nfgenmsgLen:], attrTable)), chain)
		}
		return err
	})
	if err != nil && !errors.Is(err, errInterrupted) {
		return fmt.Errorf("nft: list the chains of family %s: %w", family, err)
	}
	return nil
}

// ReadChain reads one chain with its rules: the result is a table with this chain alone, and with Handles. A chain that
// does not exist is nil without an error. After a concurrent commit the error is ErrGenerationMoved.
func (c *Conn) ReadChain(ctx context.Context, family Family, table, chain string) (*Table, error) {
	r := reader{conn: c, ctx: ctx, family: family, table: table}
	d := decoder{table: &Table{Family: family, Name: table, Kernel: &KernelTable{}}}
	var a netlinkattr.List
	a.Text(unix.NFTA_CHAIN_NAME, chain)
	err := r.ask(query{typ: unix.NFT_MSG_GETCHAIN, attrs: a}, d.take)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err == nil {
		a = nil
		a.Text(unix.NFTA_RULE_CHAIN, chain)
		err = r.ask(query{typ: unix.NFT_MSG_GETRULE, flags: netlink.Dump, attrs: a}, d.take)
	}
	if err == nil && r.moved {
		err = ErrGenerationMoved
	}
	if err != nil {
		return nil, fmt.Errorf("nft: read chain %s %s %s: %w", family, table, chain, err)
	}
	return d.finish(), nil
}

// ReadElements returns the elements that a Dynamic set has now, as Elements lists them. The kernel takes time in
// proportion to the square of the set's length.
func (c *Conn) ReadElements(ctx context.Context, family Family, table string, s *Set) (elements []Element, err error) {
	for range readAttempts {
		elements, err = nil, nil
		for e, failed := range c.Elements(ctx, family, table, s) {
			if failed == nil {
				elements = append(elements, e)
			}
			err = failed
		}
		if err == nil {
			return elements, nil
		} else if !errors.Is(err, ErrGenerationMoved) {
			break
		}
	}
	return nil, err
}

// Elements lists the elements of a set as they arrive, in no order and without a catch-all, and keeps none of them.
// An error ends the loop: ctx's as soon as ctx is done, ErrGenerationMoved after a concurrent commit (not for a
// Dynamic set), and one for a set that does not exist or has elements of another type than s.
//
// While the kernel rehashes a set that has just grown, for some milliseconds, a listing can omit elements and have
// others twice. The loop's body must not use the connection.
func (c *Conn) Elements(ctx context.Context, family Family, table string, s *Set) iter.Seq2[Element, error] {
	return func(yield func(Element, error) bool) {
		r := reader{conn: c, ctx: ctx, family: family, table: table, throughCommits: s.Dynamic}
		err := r.elements(s.Name, func(raw *rawElement) error {
			if raw.catchAll() {
				return nil
			}
			e := raw.element()
			if len(e.Key) != s.Key.Len() || len(e.Value) != s.Data.Len() {
				return fmt.Errorf("its elements are not %s", s.typeText())
			}
			if !yield(e, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			yield(Element{}, fmt.Errorf("nft: read elements of %s %s %s %s: %w", s.Kind(), family, table, s.Name, err))
		}
	}
}

// Counts calls each with every element of a set with Counter, and its count, as they arrive. Commits of others do not
// end it, but then elements can be left out, and whole is false. each must not use the connection.
// The kernel takes time in proportion to the square of the set's length.
func (c *Conn) Counts(ctx context.Context, family Family, table, set string, each func(e Element, n Count)) (whole bool, err error) {
	r := reader{conn: c, ctx: ctx, family: family, table: table, throughCommits: true}
	err = r.elements(set, func(raw *rawElement) error {
		if raw.counter.is && !raw.catchAll() {
			each(raw.element(), raw.counter.Count)
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("nft: read the counters of set %s %s %s: %w", family, table, set, err)
	}
	return !r.moved, nil
}

// HasElement reports whether a set has an element for which is returns true; it reads the listing up to there, through
// commits. A set that does not exist is an error that wraps unix.ENOENT. is must not use the connection.
func (c *Conn) HasElement(ctx context.Context, family Family, table, set string, is func(Element) bool) (has bool, err error) {
	r := reader{conn: c, ctx: ctx, family: family, table: table, throughCommits: true}
	err = r.elements(set, func(raw *rawElement) error {
		if !is(raw.element()) {
			return nil
		}
		has = true
		return errStopped
	})
	if err != nil && !has {
		return false, fmt.Errorf("nft: look for elements of %s %s %s: %w", family, table, set, err)
	}
	return has, nil
}

// errStopped says that nobody wants the rest of a listing.
var errStopped = errors.New("stopped")

// whole reads the table once, with elements. Commits do not disturb the listings of Dynamic sets, which come last.
func (r *reader) whole() (*Table, error) {
	d, err := r.contents()
	if err != nil || d == nil {
		return nil, err
	}
	for _, s := range d.table.Sets {
		if err := r.elementsOf(s, d); err != nil {
			return nil, gone(err)
		}
	}
	if err := r.steady(); err != nil {
		return nil, err
	}
	r.throughCommits = true
	for _, s := range d.table.Sets {
		if r.dynamic && s.Dynamic {
			if err := r.elementMessages(s.Name, d.take); err != nil {
				return nil, gone(err)
			}
		}
	}
	return d.finish(), nil
}

// gone returns ErrGenerationMoved if the listing of a part failed because the part was deleted concurrently.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return ErrGenerationMoved
	}
	return err
}

// reader reads parts of one table, and notices concurrent commits.
type reader struct {
	conn   *Conn
	ctx    context.Context
	family Family
	table  string
	// throughCommits continues after a concurrent commit. Then steady returns the error in the end.
	throughCommits bool
	// record keeps the messages about the table in recording. dynamic reads the elements of Dynamic sets too.
	record, dynamic bool
	recording       Recording
	// generation is the lower half of the kernel's generation number in the last answer, if started. moved says that
	// two answers differed.
	generation     uint16
	started, moved bool
}

// ask asks the kernel about the table, and ends with ErrGenerationMoved as soon as an answer is of another generation.
func (r *reader) ask(q query, each func(reply) error) error {
	q.family, q.table = r.family, r.table
	err := r.conn.ask(r.ctx, q, func(m reply) error {
		if err := r.note(m); err != nil {
			return err
		}
		if !isAbout(m.Data, r.table) {
			return nil // kernels that do not filter listings send those of others too
		}
		if r.record {
			r.recording.add(m.Header.Type, m.Data)
		}
		return each(m)
	})
	if errors.Is(err, errInterrupted) {
		r.moved = true
		return nil
	}
	return err
}

// note compares the generation of an answer with the generation of the previous answer.
func (r *reader) note(m reply) error {
	if len(m.Data) < nfgenmsgLen {
		return netlinkattr.ErrShort
	}
	now := binary.BigEndian.Uint16(m.Data[2:]) // nfgenmsg.res_id
	if r.started && now != r.generation {
		r.moved = true
	}
	r.generation, r.started = now, true
	if r.moved && !r.throughCommits {
		return ErrGenerationMoved
	}
	return nil
}

// steady fails if the generation moved while the table was read, or if the table has gone since.
func (r *reader) steady() error {
	there := r.started
	// Every answer has the generation. This one is short.
	t, err := r.header()
	if err != nil {
		return err
	}
	if r.moved || there && t == nil {
		return ErrGenerationMoved
	}
	return nil
}

// header reads the table without its contents; nil if there is none.
func (r *reader) header() (*Table, error) { return readHeader(r.ask, r.family, r.table) }

func (r *reader) list(typ uint16, each func(reply) error) error {
	return r.ask(query{typ: typ, flags: netlink.Dump}, each)
}

// contents reads the table without elements; nil if there is none.
func (r *reader) contents() (*decoder, error) {
	t, err := r.header()
	if err != nil || t == nil {
		return nil, err
	}
	d := &decoder{table: t}
	for _, typ := range []uint16{unix.NFT_MSG_GETSET, unix.NFT_MSG_GETOBJ, netlinkattr.MsgGetFlowtable, unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_GETRULE} {
		if err := r.list(typ, d.take); err != nil {
			return nil, gone(err)
		}
	}
	if r.conn.uncounted {
		for _, s := range t.Sets {
			s.kernel.count = -1
		}
	}
	return d, d.complete()
}

// complete fails if a rule was listed and its chain was not. The kernel lists the chains of all tables of a family in
// one go and continues after as many as it has listed: it leaves chains out if others were deleted during the listing, and
// repeats chains if others were added. The kernel adds chains before it raises the generation, and deletes chains after it,
// so the generation need not show either.
func (d *decoder) complete() error {
	for _, rule := range d.rules {
		if d.chains[rule.chain] == nil {
			return fmt.Errorf("%w: the kernel listed rules of chain %s, and not the chain", ErrGenerationMoved, rule.chain)
		}
	}
	return nil
}

// elementsOf reads the elements of a set; of a Dynamic one the catch-all only.
func (r *reader) elementsOf(s *Set, d *decoder) error {
	if s.Dynamic {
		return r.element(s, Element{Key: CatchAll}, d.take)
	}
	if err := r.elementMessages(s.Name, d.take); err != nil {
		return err
	}
	return s.complete(s.countable())
}

// errIncomplete says that the kernel left elements out of a listing, as it can while it rehashes a set that has
// grown.
var errIncomplete = fmt.Errorf("%w: the kernel listed a part of a set", ErrGenerationMoved)

// complete compares the number of elements listed, without a catch-all, with the kernel's count (kernel 6.15), which
// is another number in sets with ranges.
func (s *Set) complete(listed int) error {
	if s.kernel.count >= 0 && s.kernel.count != listed && !s.Interval && !s.isOpaque() {
		return errIncomplete
	}
	return nil
}

func (r *reader) elements(set string, each func(*rawElement) error) error {
	return r.elementMessages(set, func(m reply) error { return eachElement(m.Data, each) })
}

// elementMessages lists the elements of a set, message by message.
func (r *reader) elementMessages(set string, each func(reply) error) error {
	return r.ask(query{typ: unix.NFT_MSG_GETSETELEM, flags: netlink.Dump, attrs: elementList(set)}, each)
}

// elementList begins the attributes of a request for elements of a set.
func elementList(set string) (a netlinkattr.List) {
	a.Text(unix.NFTA_SET_ELEM_LIST_SET, set)
	return a
}

// element asks for the element with the key of e and calls each if there is one. In a set with ranges that may be
// another range.
func (r *reader) element(s *Set, e Element, each func(reply) error) error {
	lengths := s.lengths()
	if err := lengths.checkKey(s, &e); err != nil {
		return invalidError{err}
	}
	a := elementList(s.Name)
	list := a.Begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	encodeElement(&a, s, lengths, &e, false)
	a.End(list)
	err := r.ask(query{typ: unix.NFT_MSG_GETSETELEM, attrs: a}, each)
	if errors.Is(err, unix.ENOENT) || e.Key == CatchAll && errors.Is(err, unix.EINVAL) {
		return nil // there is none, or the kernel knows no catch-all
	}
	return err
}

// count reads how many elements the kernel counts in a set; -1 if it does not say.
func (r *reader) count(s *Set) (n int, err error) {
	var a netlinkattr.List
	a.Text(unix.NFTA_SET_NAME, s.Name)
	err = r.ask(query{typ: unix.NFT_MSG_GETSET, attrs: a}, func(m reply) error {
		now, err := decodeSet(m.Data)
		if err == nil {
			n = now.kernel.count
		}
		return err
	})
	return n, err
}
