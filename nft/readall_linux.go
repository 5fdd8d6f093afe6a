package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// ReadOthers reads the tables of all programs, in the order in which they were made. It does not read the known tables, but
// returns them at their places. A table of family arp has its base chains only. Elements of sets stay in the kernel: see
// Lookup. A table with more than 100,000 rules has no chains, and LeftOut says so. Commits of other programs do not end the
// call, so a rule can name a chain that is gone.
func (c *Conn) ReadOthers(ctx context.Context, known ...*Table) ([]*Table, error) {
	tables, _, err := c.others(ctx, reader{}, known)
	return tables, err
}

// RecordOthers is ReadOthers, and returns the kernel's messages about each table: nil for a known table and for a table with
// LeftOut. A table whose messages would bring the sum over 32 MB has LeftOut too. The messages have the elements of each set of
// at most 10,000 elements.
func (c *Conn) RecordOthers(ctx context.Context, known ...*Table) ([]*Table, []Recording, error) {
	return c.others(ctx, reader{record: true}, known)
}

func (c *Conn) others(ctx context.Context, how reader, known []*Table) (tables []*Table, recordings []Recording, err error) {
	var decoders []*decoder // nil for known tables
	err = c.ask(ctx, query{typ: unix.NFT_MSG_GETTABLE, flags: netlink.Dump}, func(m reply) error {
		d := &decoder{other: true}
		if err := d.take(m); err != nil {
			return err
		}
		t := d.table
		if i := slices.IndexFunc(known, func(k *Table) bool { return k.identity() == t.identity() }); i >= 0 {
			t, d = known[i], nil
		}
		var recording Recording
		if how.record && d != nil {
			recording.add(m.Header.Type, m.Data)
		}
		tables, recordings, decoders = append(tables, t), append(recordings, recording), append(decoders, d)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("nft: list tables: %w", err)
	}
	room := maxRecordedBytes
	for i, d := range decoders {
		if d == nil {
			continue
		}
		t := d.table
		r := reader{
			conn: c, ctx: ctx, family: t.Family, table: t.Name,
			throughCommits: true, record: how.record, recording: recordings[i],
		}
		switch err := r.other(d, room); {
		case errors.As(err, new(leftOutError)):
			t.Chains, t.Sets, t.Kernel.LeftOut, r.recording = nil, nil, err.Error(), nil
		case err != nil:
			return nil, nil, fmt.Errorf("nft: read table %s %s: %w", t.Family, t.Name, err)
		}
		d.finish()
		recordings[i] = r.recording
		room -= len(r.recording)
	}
	return tables, recordings, nil
}

// other reads the contents of another program's table, and no more bytes than there is room for.
func (r *reader) other(d *decoder, room int) error {
	take := func(m reply) error {
		if len(r.recording) > room {
			return leftOutError(fmt.Sprintf("a dump has no room for it: with it the tables of other programs have more than %d MB", maxRecordedBytes>>20))
		}
		return d.take(m)
	}
	if err := r.list(unix.NFT_MSG_GETCHAIN, take); err != nil || d.table.Family == unix.NFPROTO_ARP {
		return err
	}
	if err := r.list(unix.NFT_MSG_GETSET, take); err != nil {
		return err
	}
	listed := 0
	for _, s := range d.table.Sets {
		switch {
		case r.record:
			if err := r.recordElements(s, take); err != nil {
				return err
			}
		case s.kernel.anonymous && listed < maxListedSets: // it stands in a rule, which prints the first elements
			listed++
			all, err := r.firstElements(s, maxListedElement, take)
			if s.kernel.partial = !all; err != nil {
				return err
			}
		}
	}
	return r.list(unix.NFT_MSG_GETRULE, take)
}

// firstElements reads the elements of a set, but not many more than most. It reports whether it has read all.
func (r *reader) firstElements(s *Set, most int, take func(reply) error) (all bool, err error) {
	err = r.elementMessages(s.Name, func(m reply) error {
		if err := take(m); err != nil {
			return err
		}
		if s.Len() > most {
			return errStopped
		}
		return nil
	})
	switch {
	case errors.Is(err, errStopped):
		return false, nil
	case errors.Is(err, unix.ENOENT):
		err = nil // the set has gone
	}
	return true, err
}

// recordElements records the elements of a set, or none if there are too many.
func (r *reader) recordElements(s *Set, take func(reply) error) error {
	before := r.recording
	all, err := r.firstElements(s, MaxRecordedElements, take)
	if s.kernel.partial = !all; !all || err != nil {
		r.recording, s.elements, s.kernel.edges = before, nil, nil
		return err
	}
	// A message without elements says that the set was listed.
	empty := append(start(r.family, r.table, 64), elementList(s.Name)...)
	r.recording.add(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWSETELEM, empty)
	return nil
}

// Lookup asks the kernel for the element of a set that a packet with the key would find: the same, one whose range
// contains it, or the catch-all. The key is padded, like all Data.
func (c *Conn) Lookup(ctx context.Context, t *Table, set string, key Data) (e Element, found bool, err error) {
	s := t.Set(set)
	if s == nil || len(key) < s.Key.keyLen() {
		return e, false, fmt.Errorf("nft: table %s %s has no set %s with keys of %d bytes", t.Family, t.Name, set, len(key))
	}
	r := reader{conn: c, ctx: ctx, family: t.Family, table: t.Name, throughCommits: true}
	for _, catchAll := range []bool{false, true} {
		a := elementList(set)
		list := a.Begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		elem := a.Begin(unix.NFTA_LIST_ELEM)
		if catchAll {
			a.Uint32(unix.NFTA_SET_ELEM_FLAGS, netlinkattr.SetElemFlagCatchAll)
		} else {
			k := a.Begin(unix.NFTA_SET_ELEM_KEY)
			a.ByteString(unix.NFTA_DATA_VALUE, string(key)[:s.Key.keyLen()])
			a.End(k)
		}
		a.End(elem)
		a.End(list)
		err = r.ask(query{typ: unix.NFT_MSG_GETSETELEM, attrs: a}, func(m reply) error {
			return eachElement(m.Data, func(raw *rawElement) error {
				expired := raw.timeout > 0 && raw.expires == 0
				if found = raw.flags&unix.NFT_SET_ELEM_INTERVAL_END == 0 && !expired; found {
					e = raw.element()
				}
				return nil
			})
		})
		if catchAll && errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			err = nil // none, or a kernel without catch-alls
		}
		if err != nil || found {
			break
		}
	}
	if err != nil {
		return e, false, fmt.Errorf("nft: look up a key in %s of table %s %s: %w", set, t.Family, t.Name, err)
	}
	return e, found, nil
}
