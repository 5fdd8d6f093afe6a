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
)

const (
	// affinityKeepTime bounds how long clients are read out of tables that are about to be replaced.
	affinityKeepTime = time.Second
	// affinityConnectionsTime bounds how long new tables wait for a listing of connections when the maps are gone. The
	// reconciler adds the other clients later.
	affinityConnectionsTime = 250 * time.Millisecond
)

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

// keptAffinity returns the steps that copy the clients of tables that are about to be replaced into the new ones. If
// maps are gone, or another program's, it takes clients with a connection in conntrack instead. If that takes too long,
// the reconciler does the rest.
func (b *Backend) keptAffinity(ctx context.Context) nft.Transaction {
	kept := clients{}
	if lost := b.readKept(ctx, kept); lost && b.conntrack != nil {
		ctx, cancel := context.WithTimeout(ctx, affinityConnectionsTime)
		defer cancel()
		b.affinity.restore = b.connections(ctx, b.conntrack, locked{}, kept) != nil
	}
	return kept.transaction()
}

// readKept adds the clients of the kernel's maps. lost says that a map could not be read.
func (b *Backend) readKept(ctx context.Context, kept clients) (lost bool) {
	ctx, cancel := context.WithTimeout(ctx, affinityKeepTime)
	defer cancel()
	for _, m := range b.compiler.Affinity().Maps() {
		elements, err := readAffinity(ctx, b.reader, m)
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
func (b *Backend) connections(ctx context.Context, table *conntrack.Conn, mu sync.Locker, to clients) error {
	affinity := b.compiler.Affinity()
	var failures []error
	for _, family := range model.Families {
		mu.Lock()
		protocols := affinity.Protocols(family)
		mu.Unlock()
		for _, protocol := range protocols {
			err := table.Each(ctx, family, uint8(protocol), func(f conntrack.Flow) {
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
	b := r.backend
	r.lock.Lock()
	restore, table := r.restore, b.conntrack
	r.restore = false
	r.lock.Unlock()
	if !restore || table == nil {
		return nil
	}
	lost := clients{}
	failures := []error{b.connections(ctx, table, &r.lock, lost)}
	for _, m := range lost {
		failures = append(failures, r.addClients(ctx, m.AffinityMap, m.elements))
	}
	return errors.Join(failures...)
}
