package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

// reconcile reads the kernel's tables and commits the difference with the wanted ones. The tables may be from an
// earlier process, from another proxy, or changed by somebody else. It replaces them whole only if it must: while a
// table is replaced, a packet that runs through the old rules may find their maps empty.
func (b *Backend) reconcile(ctx context.Context, logger klog.Logger) error {
	err := b.reconcileTables(ctx, logger)
	if err == nil {
		err = b.removeStandIns(ctx)
	}
	if err != nil {
		b.lost() // the next Sync tries again
	}
	return err
}

func (b *Backend) reconcileTables(ctx context.Context, logger klog.Logger) error {
	tx, err := b.difference(ctx)
	if err == nil && b.flows != nil && !b.committed() {
		b.flows.flows.formerly(b.compiler, tx)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // the tables may be readable
	case err != nil:
		logger.Info("Replacing the tables, because they cannot be read", "reason", err.Error())
	case tx.AddsTable(), !b.committed() && changesBaseChains(tx):
		logger.V(2).Info("Making the tables anew, because they are not there or another program's")
	default:
		if err = b.commitWithAffinity(ctx, tx); err == nil || notSent(ctx, err) {
			return err
		}
		logger.Info("Replacing the tables, because committing the difference failed", "reason", err.Error())
	}
	if b.committed() {
		return b.replace(ctx, b.commitWanted)
	}
	return b.takeOver(ctx, logger)
}

// changesBaseChains reports whether a transaction changes a base chain. Then another program, or another version of
// this one, wrote the table, and packets run through its rules.
func changesBaseChains(tx nft.Transaction) bool {
	return slices.ContainsFunc(tx.Steps, func(s nft.Step) bool { return s.Chain != nil && s.Chain.Hook != "" })
}

// differenceAttempts is how often the tables are read when others commit meanwhile.
const differenceAttempts = 10

// difference reads both tables and returns the transaction that turns them into the wanted ones. A failure for another
// reason may pass too, such as a lack of memory, so it reads once more.
func (b *Backend) difference(ctx context.Context) (tx nft.Transaction, err error) {
	failed := false
	for range differenceAttempts {
		tx, err = b.differenceOnce(ctx)
		if err == nil || ctx.Err() != nil || failed && !errors.Is(err, nft.ErrGenerationMoved) {
			break
		}
		failed = failed || !errors.Is(err, nft.ErrGenerationMoved)
	}
	return tx, err
}

func (b *Backend) differenceOnce(ctx context.Context) (tx nft.Transaction, err error) {
	if b.generation, err = b.conn.Generation(ctx); err != nil {
		return tx, err
	}
	for _, want := range b.compiler.Tables() {
		step, err := b.reader.Compare(ctx, want, nft.Comparison{StaleKeys: b.compiler.StaleEndpoints})
		if err != nil {
			return tx, err
		}
		tx.Append(step)
	}
	return tx, nil
}

// replace replaces both tables with the wanted ones, in a transaction that do commits. It keeps those clients of
// session affinity that it can read in time.
func (b *Backend) replace(ctx context.Context, do func(context.Context, nft.Transaction) error) error {
	kept := b.keptAffinity(ctx)
	if err := ctx.Err(); err != nil {
		return err // not all clients were read
	}
	b.compiler.Invalidate()
	b.lost()
	tx := b.compiler.Transaction()
	tx.Append(kept)
	if err := do(ctx, tx); err != nil {
		return fmt.Errorf("program the rules: %w", err)
	}
	b.affinity.wake.signal()
	return nil
}
