package proxy

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
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
)

// affinityChanges returns the steps for affinity maps in the transaction of a Sync: it deletes clients of endpoints
// that went, and copies clients whose frontends use another map now. It returns a part of them if reading takes too
// long or fails.
func (b *Backend) affinityChanges(parent context.Context) nft.Transaction {
	ctx, cancel := context.WithTimeout(parent, affinityReadTime)
	defer cancel()
	room := affinitySyncElements
	affinity := b.compiler.Affinity()
	var tx nft.Transaction
	for _, m := range affinity.Losing() {
		gone := b.goneClients(ctx, m, room)
		room -= len(gone)
		tx.Append(changeClients(nft.DeleteElements, m, gone))
	}
	tx.Append(b.allCopies(parent, affinity.Moves()))
	return tx
}

// allCopies returns the steps that copy the clients of all moves. If a map cannot be read in time, the reconciler
// restores those of its clients that have a connection in conntrack.
func (b *Backend) allCopies(ctx context.Context, moves []compiler.AffinityMove) (tx nft.Transaction) {
	if len(moves) == 0 {
		return tx
	}
	ctx, cancel := context.WithTimeout(ctx, b.copyTime)
	defer cancel()
	for _, move := range moves {
		copies, err := b.copies(ctx, move)
		b.affinity.restore = b.affinity.restore || err != nil
		tx.Append(copies)
	}
	return tx
}

// goneClients returns at most room clients of a map whose endpoint does not serve them; none if it cannot be read.
func (b *Backend) goneClients(ctx context.Context, m compiler.AffinityMap, room int) (gone []nft.Element) {
	clients, err := readAffinity(ctx, b.reader, m)
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
func (b *Backend) copies(ctx context.Context, move compiler.AffinityMove) (tx nft.Transaction, err error) {
	from, err := readAffinity(ctx, b.reader, move.From)
	if err != nil {
		return tx, err
	}
	to, err := readAffinity(ctx, b.reader, move.To)
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
