package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// Packets fill the maps of session affinity. When an endpoint goes, its clients must be deleted from the maps. A Sync
// deletes those that it can read in a fixed time, in its own transaction. Right after the Sync, the affinity reconciler
// deletes the others, and clients that packets under way have added since.

const (
	// affinityReadTime bounds how long a Sync reads maps of clients.
	affinityReadTime = 50 * time.Millisecond
	// affinitySyncElements bounds how many clients a Sync deletes.
	affinitySyncElements = 8192
	// affinityCopyTime bounds how long a Sync reads maps to copy clients, after a change of a Service's traffic policy.
	affinityCopyTime = 250 * time.Millisecond
	// aboutToExpire is the least time that an element must have left for a Sync to delete it. If an element expires
	// before the kernel comes to it, the kernel refuses the whole transaction.
	aboutToExpire = 5 * time.Second
	// affinityKeepTime bounds how long clients are read out of tables that are about to be replaced.
	affinityKeepTime = time.Second
	// affinityConnectionsTime bounds how long new tables wait for a listing of connections when the maps are gone. The
	// reconciler adds the other clients later.
	affinityConnectionsTime = 250 * time.Millisecond
)

// changes returns the steps for affinity maps in the transaction of a Sync: it deletes clients of endpoints that went,
// and copies clients whose frontends use another map now. It returns a part of them if reading takes too long or fails.
// If clients could not be copied, the reconciler restores those that have a connection in conntrack.
func (r *affinityReconciler) changes(parent context.Context) nft.Transaction {
	affinity := r.backend.compiler.Affinity()
	ctx, cancel := context.WithTimeout(parent, affinityReadTime)
	defer cancel()
	room := affinitySyncElements
	var tx nft.Transaction
	for _, m := range affinity.Losing() {
		gone := r.goneClients(ctx, m, room)
		room -= len(gone)
		tx.Append(changeClients(nft.DeleteElements, m, gone))
	}
	moves := affinity.Moves()
	if len(moves) == 0 {
		return tx
	}
	ctx, cancel = context.WithTimeout(parent, r.copyTime)
	defer cancel()
	for _, move := range moves {
		copies, err := r.copies(ctx, move)
		r.restore = r.restore || err != nil
		tx.Append(copies)
	}
	return tx
}

// goneClients returns at most room clients of a map whose endpoint does not serve them; none if it cannot be read.
func (r *affinityReconciler) goneClients(ctx context.Context, m compiler.AffinityMap, room int) (gone []nft.Element) {
	clients, err := readAffinity(ctx, r.backend.reader, m)
	if err != nil {
		return nil
	}
	for _, e := range clients {
		if len(gone) < room && !m.Serves(e) && e.Expires > aboutToExpire {
			gone = append(gone, e)
		}
	}
	return gone
}

// copies returns the steps that copy the clients of one move, without those that the other map has already.
func (r *affinityReconciler) copies(ctx context.Context, move compiler.AffinityMove) (tx nft.Transaction, err error) {
	from, err := readAffinity(ctx, r.backend.reader, move.From)
	if err != nil {
		return tx, err
	}
	to, err := readAffinity(ctx, r.backend.reader, move.To)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return tx, err
	}
	known := map[nft.Data]bool{}
	for _, e := range to {
		known[e.Key] = true
	}
	from = slices.DeleteFunc(from, func(e nft.Element) bool { return !move.To.Serves(e) || known[e.Key] || !restorable(e) })
	return changeClients(nft.AddElements, move.To, from), nil
}

// restorable reports whether the kernel takes an element that was read back. Older kernels do not raise an element's
// timeout when a rule with a longer one updates it.
func restorable(e nft.Element) bool { return e.Expires > 0 && e.Expires <= e.Timeout }

// changeClients returns the transaction that adds clients to a map, or deletes them from it.
func changeClients(op nft.StepOp, m compiler.AffinityMap, elements []nft.Element) (tx nft.Transaction) {
	if len(elements) > 0 {
		tx.Steps = []nft.Step{{Op: op, Table: m.Table, Set: m.Set, Elements: elements}}
	}
	return tx
}

// readAffinity reads the clients of the kernel's map. That may take long, so conn must not be the one that commits.
func readAffinity(ctx context.Context, conn *nft.Conn, m compiler.AffinityMap) (clients []nft.Element, err error) {
	for e, err := range conn.Elements(ctx, m.Table.Family, m.Table.Name, m.Set) {
		if err != nil {
			return nil, err
		}
		clients = append(clients, e)
	}
	return clients, ctx.Err()
}

// clients holds the clients to add to each map.
type clients map[mapID]*mapClients

type mapClients struct {
	compiler.AffinityMap
	elements map[nft.Data]nft.Element
}

// add adds a client, unless the map has no room for it.
func (c clients) add(m compiler.AffinityMap, e nft.Element) {
	id := mapID{m.Port, m.Set.Name}
	if c[id] == nil {
		c[id] = &mapClients{m, map[nft.Data]nft.Element{}}
	}
	if elements := c[id].elements; len(elements) < int(m.Set.Size) {
		elements[e.Key] = e
	}
}

func (c clients) transaction() (tx nft.Transaction) {
	for _, m := range c {
		tx.Append(changeClients(nft.AddElements, m.AffinityMap, slices.Collect(maps.Values(m.elements))))
	}
	return tx
}

// kept returns the steps that copy the clients of tables that are about to be replaced into the new ones. If
// maps are gone, or another program's, it takes clients with a connection in conntrack instead. If that takes too long,
// the reconciler does the rest.
func (r *affinityReconciler) kept(ctx context.Context) nft.Transaction {
	kept := clients{}
	if lost := r.readKept(ctx, kept); lost && r.backend.flows != nil {
		ctx, cancel := context.WithTimeout(ctx, affinityConnectionsTime)
		defer cancel()
		r.restore = r.connections(ctx, locked{}, kept) != nil
	}
	return kept.transaction()
}

// readKept adds the clients of the kernel's maps. lost says that a map could not be read.
func (r *affinityReconciler) readKept(ctx context.Context, kept clients) (lost bool) {
	ctx, cancel := context.WithTimeout(ctx, affinityKeepTime)
	defer cancel()
	for _, m := range r.backend.compiler.Affinity().Maps() {
		elements, err := readAffinity(ctx, r.backend.reader, m)
		lost = lost || err != nil
		for _, e := range elements {
			if m.Serves(e) && restorable(e) {
				kept.add(m, e)
			}
		}
	}
	return lost
}

// connections adds the clients of the connections in conntrack. mu is Backend.mu, which it holds for one connection at a
// time; locked for a caller that has it.
func (r *affinityReconciler) connections(ctx context.Context, mu sync.Locker, to clients) error {
	affinity := r.backend.compiler.Affinity()
	var failures []error
	for _, family := range model.Families {
		mu.Lock()
		protocols := affinity.Protocols(family)
		mu.Unlock()
		for _, protocol := range protocols {
			err := r.backend.flows.Conn().Each(ctx, family, uint8(protocol), func(f conntrack.Flow) {
				if f.Translated() {
					mu.Lock()
					defer mu.Unlock()
					affinity.ConnectionElements(protocol, f.Source.Addr(), f.Dialed, f.Server, to.add)
				}
			})
			if err != nil {
				failures = append(failures, fmt.Errorf("%s %s: %w", family, protocol, err))
			}
		}
	}
	return errors.Join(failures...)
}

// locked stands for a mutex that the caller holds.
type locked struct{}

func (locked) Lock()   {}
func (locked) Unlock() {}

// restoreFromConntrack adds the clients of the connections in conntrack to the maps, if clients were lost.
func (r *affinityReconciler) restoreFromConntrack(ctx context.Context) error {
	r.lock.Lock()
	restore := r.restore
	r.restore = false
	r.lock.Unlock()
	if !restore || r.backend.flows == nil {
		return nil
	}
	lost := clients{}
	failures := []error{r.connections(ctx, &r.lock, lost)}
	for _, m := range lost {
		failures = append(failures, r.addClients(ctx, m.AffinityMap, m.elements))
	}
	return errors.Join(failures...)
}
