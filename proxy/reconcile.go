package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

// reconcile reads the kernel's tables, of this program or another, and commits the difference with the wanted tables. It
// replaces them whole only if it must: meanwhile a packet that runs through the old rules may find their maps empty.
func (b *Backend) reconcile(ctx context.Context, logger klog.Logger) error {
	err := b.readAndCommit(ctx, logger)
	if err == nil {
		err = b.removeTemporary(ctx)
	}
	if err != nil {
		b.becomeUnknown()
	}
	return err
}

// differenceAttempts bounds the readings of the tables if others commit during each.
const differenceAttempts = 10

// readAndCommit does the work of reconcile except for the temporary tables. A reason to replace the tables may be chance: a lack of
// memory, or concurrent commits of others. So it reads again, and believes the reason the second time.
func (b *Backend) readAndCommit(ctx context.Context, logger klog.Logger) error {
	first := b.state == stateNew
	reason, doubted := "", false
	for range differenceAttempts {
		tx, certain, err := b.difference(ctx)
		if err == nil && first && b.flows != nil {
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
		case tx.AddsTable(), first && changesBaseChains(tx):
			reason = ""
			if first && addsAll(tx) {
				logger.V(2).Info("Making the tables")
			} else {
				logger.V(2).Info("Making the tables anew, because they are not there or another program's")
			}
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
	if first {
		return b.takeOver(ctx, logger)
	}
	return b.replace(ctx, atOnce, false)
}

// addsAll reports whether the kernel has neither table: a transaction adds both, and deletes none.
func addsAll(tx nft.Transaction) bool {
	added := 0
	for _, s := range tx.Steps {
		switch s.Op {
		case nft.AddTable:
			added++
		case nft.DestroyTable:
			return false
		}
	}
	return added == len(nft.Families)
}

// changesBaseChains reports whether a transaction changes a base chain. Then another program, or another version of
// this one, wrote the table, and packets run through its rules.
func changesBaseChains(tx nft.Transaction) bool {
	return slices.ContainsFunc(tx.Steps, func(s nft.Step) bool { return s.Chain != nil && s.Chain.Hook != "" })
}

func (b *Backend) difference(ctx context.Context) (tx nft.Transaction, certain bool, err error) {
	if b.generation, err = b.conn.Generation(ctx); err != nil {
		return tx, false, err
	}
	return compare(ctx, b.reader, b.compiler.Tables(), nft.CompareOptions{RefillFrom: b.refillFrom})
}

// refillFrom is the number of elements from which on a map of endpoints is refilled, because the kernel takes longer to
// list it: from 25,000 to 50,000 (nft's BenchmarkRefill). Other sets show which addresses no Service has any more.
const refillFrom = 50_000

// compare compares the kernel's tables with the wanted tables. A difference is not certain if others commit concurrently.
func compare(ctx context.Context, conn *nft.Conn, wanted []*nft.Table, options nft.CompareOptions) (tx nft.Transaction, certain bool, err error) {
	certain, options.ThroughCommits = true, true
	for _, want := range wanted {
		part, err := conn.Compare(ctx, want, options)
		if err != nil && (part.Empty() || !errors.Is(err, nft.ErrGenerationMoved)) {
			return tx, false, err
		}
		certain = certain && err == nil
		tx.Append(part)
	}
	return tx, certain, nil
}

// replace replaces both tables, and keeps the clients that it can read in time. It commits the two parts that split
// makes of the transaction one after the other. With pause, the tables count as applied only when no packet runs through
// other rules any more, so that no check removes the temporary tables too soon.
func (b *Backend) replace(ctx context.Context, split func(nft.Transaction) (first, last nft.Transaction), pause bool) error {
	kept := b.affinity.kept(ctx)
	if err := ctx.Err(); err != nil {
		return err // not all clients were read
	}
	b.compiler.Invalidate()
	b.becomeUnknown()
	tx := b.compiler.Transaction()
	tx.Append(kept)
	err := b.commitBoth(ctx, tx, split)
	if err == nil && pause {
		err = b.pause(ctx)
	}
	if err != nil {
		return fmt.Errorf("program the rules: %w", err)
	}
	b.becomeApplied()
	b.affinity.wake.signal()
	return nil
}

func (b *Backend) commitBoth(ctx context.Context, tx nft.Transaction, split func(nft.Transaction) (first, last nft.Transaction)) error {
	first, last := split(tx)
	if err := b.commit(ctx, first); err != nil {
		return err
	}
	return b.commit(ctx, last)
}

// atOnce leaves a transaction in one part.
func atOnce(tx nft.Transaction) (first, last nft.Transaction) { return tx, nft.Transaction{} }

// hookTime is longer than a packet needs for the rules of one hook.
const hookTime = 20 * time.Millisecond

// takeOver replaces the tables of another program, or of another version of this one. Temporary tables serve during the
// exchange, because replacing alone has two gaps: a packet that runs through the old rules finds their maps empty; and
// addresses with source ranges drop everybody until the very end of the commit (compiler.GuardsLast).
func (b *Backend) takeOver(ctx context.Context, logger klog.Logger) error {
	there, err := familiesWith(ctx, b.conn, compiler.TableNameFor(b.serviceProxyName))
	switch other := b.hooks.OtherRules; {
	case err == nil && len(there) > 0:
	case err == nil && other != nil && other(ctx):
		return b.replace(ctx, compiler.ServicesLast, false)
	default:
		return b.replace(ctx, atOnce, false)
	}
	var temporary nft.Transaction
	for _, table := range b.compiler.TemporaryTables() {
		temporary.Append(nft.Replace(table))
	}
	if err := b.commitBoth(ctx, temporary, compiler.GuardsLast); err != nil {
		logger.Info("Replacing the tables without temporary ones", "reason", err.Error())
		return b.replace(ctx, atOnce, false)
	}
	err = b.pause(ctx)
	if err == nil {
		err = b.replace(ctx, compiler.GuardsLast, true)
	}
	if err != nil {
		return errors.Join(err, b.removeTemporary(context.WithoutCancel(ctx)))
	}
	return nil
}

// pause waits for packets under way, or until ctx ends. It releases mu meanwhile: Syncs never overlap, and checks leave
// alone what is not applied yet.
func (b *Backend) pause(ctx context.Context) error {
	wait := b.hookTime
	b.mu.Unlock()
	defer b.mu.Lock()
	sleep(ctx, wait)
	return ctx.Err()
}

// restoreTime bounds how long the first Sync reads sets of the kernel. It takes milliseconds, but on a busy machine more
// than a second.
const restoreTime = 5 * time.Second

// restore makes the compiler go on from the kernel's tables. It may read them until the caller calls done.
func (b *Backend) restore(ctx context.Context) (done func()) {
	ctx, cancel := context.WithTimeout(ctx, restoreTime)
	b.compiler.Restore(func(family nft.Family, set *nft.Set) []nft.Element {
		for range differenceAttempts {
			elements, err := readSet(ctx, b.reader, family, compiler.TableNameFor(b.serviceProxyName), set)
			if err == nil {
				return elements
			} else if !errors.Is(err, nft.ErrGenerationMoved) {
				break
			}
		}
		return nil
	})
	return cancel
}

// removeTemporary removes the temporary tables, also if an earlier process left them.
func (b *Backend) removeTemporary(ctx context.Context) error {
	tx, err := removal(ctx, b.conn, compiler.TemporaryNameFor(b.serviceProxyName))
	if err != nil {
		return err
	}
	return b.commit(ctx, tx)
}
