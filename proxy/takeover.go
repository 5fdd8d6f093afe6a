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

// takeOver replaces the tables of another program, or of another version of this one. Stand-ins serve meanwhile, since
// replacing alone has two gaps:
//
//   - A packet that is on its way through the old rules finds their maps empty. The stand-ins' NAT chains come after
//     all others and translate what those did not.
//   - The kernel makes the elements of sets with ranges valid last. Load balancer addresses with source ranges would let
//     nobody in until then. So the stand-ins guard these addresses until the new tables have the ranges.
func (b *Backend) takeOver(ctx context.Context, logger klog.Logger) error {
	there, err := familiesWith(ctx, b.conn, compiler.TableName)
	if err != nil || len(there) == 0 {
		return b.replace(ctx, b.commitWanted)
	}
	if err := b.guardsLast(ctx, b.standIns(), b.commit); err != nil {
		logger.Info("Replacing the tables without stand-ins", "reason", err.Error())
		return b.replace(ctx, b.commitWanted)
	}
	time.Sleep(inFlight)
	if err := b.replace(ctx, func(ctx context.Context, tx nft.Transaction) error { return b.guardsLast(ctx, tx, b.commitWanted) }); err != nil {
		return errors.Join(err, b.removeStandIns(context.WithoutCancel(ctx)))
	}
	time.Sleep(inFlight)
	return nil
}

// guardsLast commits a transaction in two: first all but the steps that guard load balancer addresses, then, with
// commitGuards, those.
func (b *Backend) guardsLast(ctx context.Context, tx nft.Transaction, commitGuards func(context.Context, nft.Transaction) error) error {
	first, guards := compiler.GuardsLast(tx)
	if err := b.commit(ctx, first); err != nil {
		return err
	}
	return commitGuards(ctx, guards)
}

// standIns returns the transaction that makes the stand-ins.
func (b *Backend) standIns() (tx nft.Transaction) {
	for _, table := range b.compiler.StandIns() {
		tx.Append(nft.Replace(table))
	}
	return tx
}

// removeStandIns also removes the stand-ins of a process that ended before it could.
func (b *Backend) removeStandIns(ctx context.Context) error {
	there, err := familiesWith(ctx, b.conn, compiler.StandInName)
	if err != nil {
		return err
	}
	var tx nft.Transaction
	for _, family := range there {
		tx.Append(nft.Remove(family, compiler.StandInName))
	}
	return b.commit(ctx, tx)
}
