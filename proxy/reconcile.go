package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nftproxy/nftproxy/model"
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

// reconcileTables is reconcile without the stand-ins. A reason to replace the tables may be chance: a lack of memory, or
// commits of others while it read. Then it reads again, and believes it the second time.
func (b *Backend) reconcileTables(ctx context.Context, logger klog.Logger) error {
	reason, doubted := "", false
	for range differenceAttempts {
		tx, certain, err := b.difference(ctx)
		if err == nil && b.flows != nil && !b.committed() {
			for family, frontend := range b.compiler.FormerFrontends(tx, model.UDP) {
				b.flows.Gone(family, frontend)
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err() // the tables may be readable
		case errors.Is(err, nft.ErrGenerationMoved):
			reason = "they changed each time they were read"
			continue
		case err != nil:
			reason, certain = "they cannot be read: "+err.Error(), false
		case tx.AddsTable(), !b.committed() && changesBaseChains(tx):
			reason = ""
			logger.V(2).Info("Making the tables anew, because they are not there or another program's")
		default:
			if err = b.commitWithAffinity(ctx, tx); err == nil || notSent(ctx, err) {
				return err
			}
			reason = "committing the difference failed: " + err.Error()
		}
		if certain || doubted {
			break
		}
		doubted = true
	}
	if reason != "" {
		logger.Info("Replacing the tables", "reason", reason)
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

// differenceAttempts is how often the tables are read when they change meanwhile.
const differenceAttempts = 10

// difference returns the transaction that turns the kernel's tables into the wanted ones.
func (b *Backend) difference(ctx context.Context) (tx nft.Transaction, certain bool, err error) {
	if b.generation, err = b.conn.Generation(ctx); err != nil {
		return tx, false, err
	}
	return b.compare(ctx, b.reader, b.compiler.Tables(), nil)
}

// compare compares the kernel's tables with the wanted ones. It continues when others commit meanwhile: their commits to
// other tables do not matter. If there is a difference then, it is not certain.
func (b *Backend) compare(ctx context.Context, conn *nft.Conn, wanted []*nft.Table, guard func(func()) error) (tx nft.Transaction, certain bool, err error) {
	certain = true
	for _, want := range wanted {
		part, err := conn.Compare(ctx, want, nft.CompareOptions{Guard: guard, ThroughCommits: true})
		if err != nil && (part.Empty() || !errors.Is(err, nft.ErrGenerationMoved)) {
			return tx, false, err
		}
		certain = certain && err == nil
		tx.Append(part)
	}
	return tx, certain, nil
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
