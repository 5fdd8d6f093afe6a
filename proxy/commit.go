package proxy

import (
	"context"
	"errors"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// commitWithAffinity commits a transaction together with the changes to affinity maps that follow from it. Packets add
// elements to those maps and elements expire, so the kernel may refuse the whole. Then it commits the transaction
// alone.
func (b *Backend) commitWithAffinity(ctx context.Context, tx nft.Transaction) error {
	changes := b.affinityChanges(ctx)
	if changes.Empty() {
		return b.commitWanted(ctx, tx)
	}
	whole := nft.Transaction{Steps: slices.Concat(tx.Steps, changes.Steps)}
	err := b.commitWanted(ctx, whole)
	if refused := (*nft.CommitError)(nil); errors.As(err, &refused) {
		return b.commitWanted(ctx, tx)
	}
	return err
}

// commitWanted commits a transaction after which the kernel holds the wanted tables.
func (b *Backend) commitWanted(ctx context.Context, tx nft.Transaction) error {
	if err := b.commit(ctx, tx); err != nil {
		return err
	}
	b.compiler.Committed()
	if b.state.kind == stateDiverged {
		b.callOnDiverged(false)
	}
	b.state = state{kind: stateApplied}
	return nil
}

// commit commits a transaction, unless it is empty.
func (b *Backend) commit(ctx context.Context, tx nft.Transaction) error {
	if tx.Empty() {
		return nil
	}
	b.meanwhile.note(tx)
	stats, err := b.commitWithoutNotice(ctx, tx)
	if err != nil {
		return err
	}
	if b.hooks.OnCommit != nil {
		b.hooks.OnCommit(stats)
	}
	return nil
}

// notSent reports whether a commit failed because ctx ended first. Then nothing was sent.
func notSent(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, ctx.Err())
}

// commitWithoutNotice commits while the listener has left its group: the kernel describes each element of a commit to
// listeners, which takes time. The generation number tells afterwards whether others have committed meanwhile.
func (b *Backend) commitWithoutNotice(ctx context.Context, tx nft.Transaction) (nft.CommitStats, error) {
	left := b.listener != nil && b.listener.Leave() == nil
	b.callOnCommitting(true)
	stats, err := b.conn.Commit(ctx, tx)
	b.callOnCommitting(false)
	if err == nil && !stats.Unchanged {
		b.generation++
		b.commits++
	}
	if !left || b.listener.Join() != nil {
		return stats, err // without the listener, the next check asks for the generation number
	}
	if now, failed := b.conn.Generation(ctx); failed != nil || now != b.generation {
		b.noticed.signal()
	}
	return stats, err
}
