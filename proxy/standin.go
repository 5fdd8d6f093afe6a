package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

// inFlight is longer than a packet needs for its way through the rules of one hook.
const inFlight = 20 * time.Millisecond

// takeOver replaces tables that are another program's, or of another version of this one. For that long there are
// stand-ins, since two things go wrong at that instant:
//
//   - A packet that is on its way through the old rules finds their maps empty. The stand-ins' NAT chains come after
//     all others and translate what those did not.
//   - The kernel makes elements of sets with ranges valid last. Load balancer addresses with source ranges would let
//     nobody in until then. So the stand-ins guard them until the ranges hold in the new tables.
func (b *Backend) takeOver(ctx context.Context, logger klog.Logger) error {
	there, err := b.tablesThere(compiler.TableName)
	if err != nil || len(there) == 0 {
		return b.replace(ctx, b.send)
	}
	if err := b.guardsLast(b.standIns(), b.carryOut); err != nil {
		logger.Info("Replacing the tables without stand-ins", "reason", err.Error())
		return b.replace(ctx, b.send)
	}
	time.Sleep(inFlight)
	if err := b.replace(ctx, func(tx nft.Transaction) error { return b.guardsLast(tx, b.send) }); err != nil {
		return errors.Join(err, b.removeStandIns())
	}
	time.Sleep(inFlight)
	return nil
}

// guardsLast carries out a transaction without the steps that guard load balancer addresses, and has end carry out those.
func (b *Backend) guardsLast(tx nft.Transaction, end func(nft.Transaction) error) error {
	first, guards := compiler.GuardsLast(tx)
	if err := b.carryOut(first); err != nil {
		return err
	}
	return end(guards)
}

// tablesThere returns the families that have a table of that name.
func (b *Backend) tablesThere(name string) (there []nft.Family, err error) {
	for _, family := range nft.Families {
		has, err := b.conn.HasTable(family, name)
		if err != nil {
			return nil, err
		}
		if has {
			there = append(there, family)
		}
	}
	return there, nil
}

func (b *Backend) standIns() (tx nft.Transaction) {
	for _, table := range b.compiler.StandIns() {
		tx.Append(nft.Replace(table))
	}
	return tx
}

// removeStandIns also removes those of a process that did not come to it.
func (b *Backend) removeStandIns() error {
	there, err := b.tablesThere(compiler.StandInName)
	if err != nil {
		return err
	}
	var tx nft.Transaction
	for _, family := range there {
		tx.Append(nft.Remove(family, compiler.StandInName))
	}
	return b.carryOut(tx)
}
