package proxy

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Packets add elements to the affinity maps themselves: which endpoint a client went to. When an endpoint goes,
// the elements that lead to it go in the transaction that takes it away. A packet that was on its way
// meanwhile can add one more, so the maps are swept after the commit, and again a moment later.

// aboutToExpire is how long an element must have left for a transaction to delete it: one that
// expires before the kernel comes to it would have the whole transaction refused.
const aboutToExpire = 5 * time.Second

// sweepAttempts is how often a sweep is tried when elements expire under its hands.
const sweepAttempts = 5

// learned reads both affinity maps and returns one step for each with those of its elements that choose wants.
func (b *Backend) learned(op nft.StepOp, choose func(e nft.Element, stale bool) bool) (tx nft.Transaction, err error) {
	for _, table := range b.compiler.Tables() {
		set := table.Set(compiler.AffinityMap)
		elements, err := b.conn.ReadElements(table.Family, table.Name, set)
		if err != nil {
			return tx, err
		}
		var chosen []nft.Element
		for _, e := range elements {
			if choose(e, b.compiler.StaleAffinity(table.Family, e)) {
				chosen = append(chosen, e)
			}
		}
		if len(chosen) > 0 {
			tx.Steps = append(tx.Steps, nft.Step{Op: op, Table: table, Set: set, Elements: chosen})
		}
	}
	return tx, nil
}

// forget returns the steps that take stale affinity away, for the transaction that makes it stale.
func (b *Backend) forget() (nft.Transaction, error) {
	return b.learned(nft.DeleteElements, func(e nft.Element, stale bool) bool { return stale && e.Expires > aboutToExpire })
}

// remember returns the steps that put affinity that still holds into tables that are about to be replaced. When
// it cannot be read, because the tables are gone or another proxy's, conntrack still knows the clients that had
// a connection lately.
func (b *Backend) remember(logger klog.Logger) nft.Transaction {
	// Older kernels do not raise an element's timeout when a rule with a longer one updates it.
	tx, err := b.learned(nft.AddElements, func(e nft.Element, stale bool) bool {
		return !stale && e.Expires > 0 && e.Expires <= e.Timeout
	})
	if err != nil {
		logger.V(2).Info("Taking session affinity from conntrack", "reason", err.Error())
		return b.recall(logger)
	}
	return tx
}

// recall returns the steps that note where the connections that conntrack knows went.
func (b *Backend) recall(logger klog.Logger) (tx nft.Transaction) {
	if b.conntrack == nil {
		return tx
	}
	for i, table := range b.compiler.Tables() {
		elements := map[nft.Data]nft.Element{}
		family := model.Families[i]
		for _, protocol := range b.compiler.AffinityProtocols(family) {
			err := b.conntrack.Each(family, uint8(protocol), func(f conntrack.Flow) {
				if e, ok := b.compiler.AffinityElement(protocol, f.Source.Addr(), f.Dialed, f.Server); ok {
					elements[e.Key] = e
				}
			})
			if err != nil {
				logger.Error(err, "Session affinity starts anew")
			}
		}
		if len(elements) > 0 {
			tx.Steps = append(tx.Steps, nft.Step{Op: nft.AddElements, Table: table, Set: table.Set(compiler.AffinityMap), Elements: slices.Collect(maps.Values(elements))})
		}
	}
	return tx
}

// sweep removes stale affinity from the kernel.
func (b *Backend) sweep() error {
	for attempt := 1; ; attempt++ {
		tx, err := b.learned(nft.DeleteElements, func(_ nft.Element, stale bool) bool { return stale })
		if err != nil || tx.Empty() {
			return err
		}
		err = b.carryOut(tx)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.ENOENT) || attempt == sweepAttempts {
			return err
		}
	}
}

// settleAffinity sweeps if something happened that can make affinity stale.
func (b *Backend) settleAffinity() error {
	if !b.compiler.AffinityStale() {
		return nil
	}
	if err := b.sweep(); err != nil {
		return err
	}
	b.compiler.AffinitySettled()
	b.sweepAgain = true
	return nil
}

// sweepLate is the sweep a moment later.
func (b *Backend) sweepLate() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.sweepAgain || !b.current {
		return nil
	}
	if err := b.sweep(); err != nil {
		return err
	}
	b.sweepAgain = false
	return nil
}
