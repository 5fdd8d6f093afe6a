package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Announcement is one part of a commit: a table, chain, set, rule, element or object that was added or deleted.
type Announcement struct {
	// Deleted says that it was deleted; else it was added, or changed.
	Deleted bool
	// Kind is "table", "chain", "set", "map", "rule", "element", an Object's Kind, or "unknown".
	Kind string
	// Family is that of the table.
	Family Family
	// Table is the name of the table. In is the name of the chain, set or object, and for a rule or an element that of its
	// chain or set; empty for a table.
	Table, In string
	// What is the rule or the element, as nft lists it; empty for all else.
	What string
}

// Watcher receives each commit to the nf_tables of one network namespace, with all its parts in the tables of one name.
// While a Watcher is open, the kernel describes every element of every commit, which makes large commits slower (see
// Listener, which is cheaper). If a commit is larger than the socket's buffer, parts of it are lost.
type Watcher struct {
	listener *Listener
	table    string
	// sets are those of the tables, without elements. They are needed to print elements and rules.
	sets map[identity]*Set
}

// watcherBuffer is how many bytes of announcements may wait to be read. An element takes some 150 bytes.
const watcherBuffer = 32 << 20

// Watch opens a Watcher for the tables of a name, of both families, in the connection's network namespace. The
// connection may be closed while the Watcher is in use. The process needs CAP_NET_ADMIN.
func (c *Conn) Watch(ctx context.Context, table string) (*Watcher, error) {
	s, err := c.namespace.openSocket()
	if err != nil {
		return nil, err
	}
	w := &Watcher{listener: &Listener{socket: s}, table: table, sets: map[identity]*Set{}}
	// SO_RCVBUFFORCE goes beyond net.core.rmem_max, which CAP_NET_ADMIN allows.
	err = s.conn.SetsockoptInt(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, watcherBuffer)
	if errors.Is(err, unix.EPERM) {
		err = s.conn.SetsockoptInt(unix.SOL_SOCKET, unix.SO_RCVBUF, watcherBuffer)
	}
	if err == nil {
		err = w.listener.Join()
	}
	if err == nil {
		err = w.readSets(ctx, c)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nft: watch: %w", err), w.Close())
	}
	return w, nil
}

// readSets reads which sets there are.
func (w *Watcher) readSets(ctx context.Context, c *Conn) error {
	for _, family := range Families {
		r := reader{conn: c, ctx: ctx, family: family, table: w.table, throughCommits: true}
		t, err := r.header()
		if err == nil && t != nil {
			err = r.sets(t)
		}
		if err != nil {
			return fmt.Errorf("read sets: %w", err)
		}
		if t != nil {
			for _, s := range t.Sets {
				w.sets[identity{family, s.Name}] = s
			}
		}
	}
	return nil
}

// Next waits for the next commit. It calls each for every part of it as it arrives, and then returns who committed. For
// tables of other names, an Announcement has the table's family and name, and Kind "unknown". Families other than ip
// and ip6 are left out. If the Notice is Lost, parts of some commits were lost. Next ends with ctx's error when ctx is
// done, and with net.ErrClosed after Close.
func (w *Watcher) Next(ctx context.Context, each func(Announcement)) (Notice, error) {
	return w.listener.next(ctx, func(r reply) { w.announce(r, each) })
}

// Close closes the watcher. A Next that waits ends with net.ErrClosed.
func (w *Watcher) Close() error { return w.listener.Close() }

// deletions are the messages that tell of a deletion.
var deletions = map[uint16]bool{
	unix.NFT_MSG_DELTABLE: true, unix.NFT_MSG_DELCHAIN: true, unix.NFT_MSG_DELRULE: true, unix.NFT_MSG_DELSET: true,
	unix.NFT_MSG_DELSETELEM: true, unix.NFT_MSG_DELOBJ: true, nftMsgDelFlowtable: true,
}

// announce decodes a message.
func (w *Watcher) announce(r reply, each func(Announcement)) {
	if r.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(r.Data) < nfgenmsgLen {
		return
	}
	typ := r.Type & 0xff
	family, err := familyOf(uint32(r.Data[0]))
	if err != nil {
		return
	}
	a := Announcement{Deleted: deletions[typ], Family: family, Kind: "unknown"}
	a.Table = netlinkattr.Text(netlinkattr.Find(r.Data[nfgenmsgLen:], attrTable))
	switch {
	case a.Table != w.table:
		each(a)
	case typ == unix.NFT_MSG_NEWSETELEM || typ == unix.NFT_MSG_DELSETELEM:
		w.announceElements(r.Data, a, each)
	default:
		w.decode(&a, typ, r.Data)
		each(a)
	}
}

// decode fills in Kind, In and What. If the message cannot be decoded, Kind stays "unknown".
func (w *Watcher) decode(a *Announcement, typ uint16, data []byte) {
	switch typ {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		a.Kind = "table"
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		if _, c, err := decodeChain(data); err == nil {
			a.Kind, a.In = "chain", c.Name
		}
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET:
		if _, s, err := decodeSet(data); err == nil {
			a.Kind, a.In = s.Kind(), s.Name
			w.noteSet(identity{a.Family, s.Name}, s, a.Deleted)
		}
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		if r, err := decodeRule(data); err == nil {
			sets := func(name string) *Set { return w.sets[identity{a.Family, name}] }
			a.Kind, a.In = "rule", r.chain
			a.What = Rule{Statements: delinearize(a.Family, sets, r.exprs), Comment: r.comment}.String()
		}
	case unix.NFT_MSG_NEWOBJ, unix.NFT_MSG_DELOBJ:
		if _, o, err := decodeObject(data); err == nil {
			a.Kind, a.In = o.Kind, o.Name
		}
	case nftMsgNewFlowtable, nftMsgDelFlowtable:
		if _, o, err := decodeFlowtable(data); err == nil {
			a.Kind, a.In = o.Kind, o.Name
		}
	}
}

func (w *Watcher) noteSet(name identity, s *Set, deleted bool) {
	if deleted {
		delete(w.sets, name)
	} else {
		w.sets[name] = s
	}
}

func (w *Watcher) announceElements(data []byte, a Announcement, each func(Announcement)) {
	a.In = netlinkattr.Text(netlinkattr.Find(data[nfgenmsgLen:], unix.NFTA_SET_ELEM_LIST_SET))
	set := w.sets[identity{a.Family, a.In}]
	err := eachElement(data, func(r *rawElement) error {
		a.Kind = "element"
		if set != nil {
			a.What = set.FormatElement(r.element())
		}
		each(a)
		return nil
	})
	if err != nil {
		a.Kind, a.What = "unknown", ""
		each(a)
	}
}
