package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

// inFlight is longer than a packet needs for the rules of one hook.
const inFlight = 20 * time.Millisecond

// takeOver replaces the tables of another program, or of another version of this one. Stand-ins serve meanwhile,
// because replacing alone has two gaps:
//
//   - A packet that runs through the old rules finds their maps empty. The stand-ins' NAT chains run later, and translate
//     packets that are not translated yet.
//   - The kernel makes elements of sets with ranges valid at the very end of a commit. Until then, load balancer
//     addresses with source ranges would drop everybody. So the stand-ins guard these addresses until the new tables
//     have the ranges.
func (b *Backend) takeOver(ctx context.Context, logger klog.Logger) error {
	there, err := familiesWith(ctx, b.conn, compiler.TableNameFor(b.serviceProxyName))
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

// guardsLast commits a transaction in two parts: first all steps except those that guard load balancer addresses, then,
// with commitGuards, those.
func (b *Backend) guardsLast(ctx context.Context, tx nft.Transaction, commitGuards func(context.Context, nft.Transaction) error) error {
	first, guards := compiler.GuardsLast(tx)
	if err := b.commit(ctx, first); err != nil {
		return err
	}
	return commitGuards(ctx, guards)
}

// standIns returns the transaction that adds the stand-ins.
func (b *Backend) standIns() (tx nft.Transaction) {
	for _, table := range b.compiler.StandIns() {
		tx.Append(nft.Replace(table))
	}
	return tx
}

// removeStandIns removes the stand-ins, also those of an earlier process that ended too soon.
func (b *Backend) removeStandIns(ctx context.Context) error {
	tx, err := removal(ctx, b.conn, compiler.StandInNameFor(b.serviceProxyName))
	if err != nil {
		return err
	}
	return b.commit(ctx, tx)
}
