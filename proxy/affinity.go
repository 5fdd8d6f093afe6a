package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// When an endpoint goes, its clients must be deleted from the maps of session affinity, which packets
// fill. A Sync deletes the clients that it can read in a fixed time. Right after the Sync, the
// affinity reconciler deletes the others, and later clients.

const (
	// affinityReadTime bounds how long a Sync reads maps of clients.
	affinityReadTime = 50 * time.Millisecond
	// affinitySyncElements bounds how many clients a Sync deletes.
	affinitySyncElements = 8192
	// affinityCopyTime bounds how long a Sync reads maps to copy clients, after a change of a Service's traffic policy.
	affinityCopyTime = 250 * time.Millisecond
	// A Sync deletes no element that is aboutToExpire: if an element is gone, the kernel refuses the whole transaction.
	aboutToExpire = 5 * time.Second
	// affinityKeepTime bounds how long clients are read out of tables that are about to be replaced.
	affinityKeepTime = time.Second
	// affinityConnectionsTime bounds how long new tables wait for a listing of connections when the maps are gone.
	affinityConnectionsTime = 250 * time.Millisecond
)

// changes returns the steps for affinity maps in the transaction of a Sync: it deletes clients of endpoints that
// went, and copies clients whose frontends use another map now. If reading takes too long or fails, it returns a part
// of the steps, and the reconciler does the rest.
func (r *affinityReconciler) changes(parent context.Context) nft.Transaction {
	affinity := r.backend.compiler.Affinity()
	ctx, cancel := context.WithTimeout(parent, affinityReadTime)
	defer cancel()
	room := affinitySyncElements
	var tx nft.Transaction
	for _, m := range affinity.Losing() {
		gone, _ := readAffinity(ctx, r.backend.reader, m)
		gone = slices.DeleteFunc(gone, func(e nft.Element) bool { return m.Serves(e) || e.Expires <= aboutToExpire })
		gone = gone[:min(room, len(gone))]
		room -= len(gone)
		tx.Append(changeClients(nft.DeleteElements, m, gone))
	}
	ctx, cancel = context.WithTimeout(parent, r.copyTime)
	defer cancel()
	for _, move := range affinity.Moves() {
		copies, err := r.copies(ctx, move)
		r.restore = r.restore || err != nil
		tx.Append(copies)
	}
	return tx
}

// copies returns the steps that copy the clients of one move, without the clients that the other map has already.
func (r *affinityReconciler) copies(ctx context.Context, move compiler.AffinityMove) (tx nft.Transaction, err error) {
	from, err := readAffinity(ctx, r.backend.reader, move.From)
	if err != nil {
		return tx, err
	}
	to, err := readAffinity(ctx, r.backend.reader, move.To)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return tx, err
	}
	from = slices.DeleteFunc(without(from, to), func(e nft.Element) bool { return !restorable(move.To, e) })
	return changeClients(nft.AddElements, move.To, from), nil
}

// without returns the clients that a map does not have.
func without(clients, held []nft.Element) (rest []nft.Element) {
	known := map[nft.Data]bool{}
	for _, e := range held {
		known[e.Key] = true
	}
	for _, e := range clients {
		if !known[e.Key] {
			rest = append(rest, e)
		}
	}
	return rest
}

// restorable reports whether a map takes an element that was read back. Older kernels do not raise an element's timeout
// when a rule with a longer one updates it.
func restorable(m compiler.AffinityMap, e nft.Element) bool {
	return m.Serves(e) && e.Expires > 0 && e.Expires <= e.Timeout
}

func changeClients(op nft.StepOp, m compiler.AffinityMap, elements []nft.Element) (tx nft.Transaction) {
	if len(elements) > 0 {
		tx.Steps = []nft.Step{{Op: op, Table: m.Table, Set: m.Set, Elements: elements}}
	}
	return tx
}

// readAffinity reads the clients of the kernel's map. This may take long, so conn must not be the connection that commits.
func readAffinity(ctx context.Context, conn *nft.Conn, m compiler.AffinityMap) (clients []nft.Element, err error) {
	return readSet(ctx, conn, m.Table.Family, m.Table.Name, m.Set)
}

func readSet(ctx context.Context, conn *nft.Conn, family nft.Family, table string, set *nft.Set) (elements []nft.Element, err error) {
	for e, err := range conn.Elements(ctx, family, table, set) {
		if err != nil {
			return nil, err
		}
		elements = append(elements, e)
	}
	return elements, ctx.Err()
}

// clients holds the maps that get clients, with the clients.
type clients map[mapID]compiler.AffinityMap

// add adds a client, unless the map has no room for it.
func (c clients) add(m compiler.AffinityMap, e nft.Element) {
	if first, ok := c[idOf(m)]; ok {
		m = first
	}
	c[idOf(m)] = m
	if m.Set.Len() < int(m.Set.Size) {
		m.Set.Put(e)
	}
}

// kept returns the steps that copy the clients of tables that are about to be replaced into the new tables. If maps are
// gone, or are another program's, it restores clients that have a connection in conntrack: once the new tables are there,
// packets of such a client could choose another endpoint first. If the listing takes too long, the reconciler adds the
// other clients.
func (r *affinityReconciler) kept(parent context.Context) (tx nft.Transaction) {
	ctx, cancel := context.WithTimeout(parent, affinityKeepTime)
	defer cancel()
	kept, lost := clients{}, false
	for _, m := range r.backend.compiler.Affinity().Maps() {
		elements, err := readAffinity(ctx, r.backend.reader, m)
		lost = lost || err != nil
		for _, e := range elements {
			if restorable(m, e) {
				kept.add(m, e)
			}
		}
	}
	if lost && r.backend.flows != nil {
		ctx, cancel := context.WithTimeout(parent, affinityConnectionsTime)
		defer cancel()
		r.restore = r.connections(ctx, new(sync.Mutex), kept.add) != nil // the caller holds Backend.mu
	}
	for _, m := range kept {
		tx.Append(changeClients(nft.AddElements, m, m.Set.Elements()))
	}
	return tx
}

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
	failures := []error{r.connections(ctx, &r.lock, lost.add)}
	for _, m := range lost {
		failures = append(failures, r.change(ctx, m, nft.AddElements, func(held []nft.Element) []nft.Element {
			return without(m.Set.Elements(), held)
		}))
	}
	return errors.Join(failures...)
}

// connections calls add with the clients in conntrack. It holds mu, Backend.mu, for one connection at a time.
func (r *affinityReconciler) connections(ctx context.Context, mu sync.Locker, add func(compiler.AffinityMap, nft.Element)) error {
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
					affinity.ConnectionElements(protocol, f.Source.Addr(), f.Dialed, f.Server, add)
				}
			})
			if err != nil {
				failures = append(failures, fmt.Errorf("%s %s: %w", family, protocol, err))
			}
		}
	}
	return errors.Join(failures...)
}
