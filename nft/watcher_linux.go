package nft

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Announcement is one part of a commit: a table, chain, set, rule, element or object that was added or deleted. What it
// holds is valid until the function that it is given to returns.
type Announcement struct {
	// Deleted says that it was deleted; else it was added, or changed.
	Deleted bool
	// Kind is "table", "chain", "set", "map", "rule", "element", or nft's word for another object.
	Kind   string
	Family Family
	// Table is the name of the table, and In that of the set or chain concerned; empty for a table itself.
	Table, In string
	// Set is the set, in the announcement of a set or map, without elements. It tells how the elements that follow print.
	Set *Set
	// Rule is the rule, in the announcement of one, as nft lists it.
	Rule string
	// Element is the element, in the announcement of one.
	Element Element
}

// Watcher hears of each commit to the nf_tables of one network namespace and of all that it consists of. While there is one, each
// commit by anybody describes all its elements, which makes large ones slower: see Listener, which is cheaper. A
// commit that is larger than the socket holds is lost in part.
type Watcher struct{ listener *Listener }

// watcherBuffer is how many bytes of announcements may wait to be read. An element takes some 150 bytes.
const watcherBuffer = 32 << 20

// Watch opens a Watcher in the connection's network namespace, which need not stay open. It needs CAP_NET_ADMIN.
func (c *Conn) Watch() (*Watcher, error) {
	s, err := c.namespace.openSocket()
	if err != nil {
		return nil, err
	}
	w := &Watcher{&Listener{socket: s}}
	// SO_RCVBUFFORCE goes beyond net.core.rmem_max, which CAP_NET_ADMIN allows.
	err = s.conn.SetsockoptInt(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, watcherBuffer)
	if errors.Is(err, unix.EPERM) {
		err = s.conn.SetsockoptInt(unix.SOL_SOCKET, unix.SO_RCVBUF, watcherBuffer)
	}
	if err == nil {
		err = w.listener.Join()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nft: watch: %w", err), w.Close())
	}
	return w, nil
}

// Next waits for the next commit. It calls each for every part of it as it arrives, keeps none, and returns who
// committed. Parts in tables of other families than ip and ip6 are left out. Parts that this package cannot decode are of the kind "unknown". A Notice
// that is Lost says that parts of some commits were lost. It ends with the error of ctx when that is done, or with net.ErrClosed.
func (w *Watcher) Next(ctx context.Context, each func(Announcement)) (Notice, error) {
	l := w.listener
	defer l.socket.interruptible(ctx)()
	var n Notice
	for heard := false; !heard; {
		err := l.socket.receiveUntil(ctx, noDeadline, func(r reply) error {
			if r.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
				heard = true
				return decodeAttributes(r.Data, n.take)
			}
			announce(r, each)
			return nil
		})
		switch {
		case err != nil && l.closed.Load():
			return Notice{}, fmt.Errorf("nft: wait for a commit: %w", net.ErrClosed)
		case errors.Is(err, unix.ENOBUFS):
			return Notice{Lost: true}, nil
		case err != nil:
			return Notice{}, fmt.Errorf("nft: wait for a commit: %w", err)
		}
	}
	return n, nil
}

// Close closes the watcher. A Next that waits ends.
func (w *Watcher) Close() error { return w.listener.Close() }

// deletions are the messages that tell of a deletion.
var deletions = map[uint16]bool{
	unix.NFT_MSG_DELTABLE: true, unix.NFT_MSG_DELCHAIN: true, unix.NFT_MSG_DELRULE: true, unix.NFT_MSG_DELSET: true,
	unix.NFT_MSG_DELSETELEM: true, unix.NFT_MSG_DELOBJ: true, nftMsgDelFlowtable: true,
}

// announce decodes a message.
func announce(r reply, each func(Announcement)) {
	if r.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(r.Data) < nfgenmsgLen {
		return
	}
	typ := r.Type & 0xff
	a := Announcement{Deleted: deletions[typ], Family: Family(r.Data[0])}
	if a.Family != FamilyIP && a.Family != FamilyIP6 {
		return
	}
	if typ == unix.NFT_MSG_NEWSETELEM || typ == unix.NFT_MSG_DELSETELEM {
		announceElements(r.Data, a, each)
		return
	}
	if err := a.decode(typ, r.Data); err != nil {
		a.Kind = "unknown"
	}
	each(a)
}

func (a *Announcement) decode(typ uint16, data []byte) (err error) {
	switch typ {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		var t *Table
		if t, err = decodeTable(data); err == nil {
			a.Kind, a.Table = "table", t.Name
		}
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		var c *Chain
		if a.Table, c, err = decodeChain(data); err == nil {
			a.Kind, a.In = "chain", c.Name
		}
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET:
		if a.Table, a.Set, err = decodeSet(data); err == nil {
			a.Kind, a.In = a.Set.Kind(), a.Set.Name
		}
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		var r decodedRule
		if r, err = decodeRule(data); err == nil {
			a.Kind, a.Table, a.In = "rule", r.table, r.chain
			a.Rule = Rule{Statements: delinearize(a.Family, func(string) *Set { return nil }, r.exprs), Comment: r.comment}.String()
		}
	case unix.NFT_MSG_NEWOBJ, unix.NFT_MSG_DELOBJ:
		var o Object
		a.Table, o, err = decodeObject(data)
		a.Kind, a.In = o.Kind, o.Name
	case nftMsgNewFlowtable, nftMsgDelFlowtable:
		var o Object
		a.Table, o, err = decodeFlowtable(data)
		a.Kind, a.In = o.Kind, o.Name
	default:
		return errors.New("another kind of message")
	}
	return err
}

// nftMsgNewFlowtable is missing in x/sys/unix.
const nftMsgNewFlowtable = 22

func announceElements(data []byte, a Announcement, each func(Announcement)) {
	a.Kind = "element"
	_ = decodeAttributes(data, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_SET_ELEM_LIST_TABLE:
			a.Table = netlinkattr.Text(b)
		case unix.NFTA_SET_ELEM_LIST_SET:
			a.In = netlinkattr.Text(b)
		}
		return nil
	})
	err := eachElement(data, func(r *rawElement) error {
		a.Element = r.element()
		each(a)
		return nil
	})
	if err != nil {
		a.Kind, a.Element = "unknown", Element{}
		each(a)
	}
}
