package leftovers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
)

// The chains of iptables-nft go in three steps, so that neither many rules nor constant commits of other programs can stop the
// removal:
//
//  1. In each table, one small transaction deletes the rules of base chains that jump to kube-proxy's chains. From then
//     on the old rules do nothing.
//  2. The chains go in batches, callers before callees. Their rules are not read: the kernel counts the references to a
//     chain, also those in verdict maps, and refuses to delete a chain that another chain or map refers to. Then this chain
//     stays, and so do the chains to which it refers itself.
//  3. KUBE-MARK-MASQ and KUBE-POSTROUTING go together, with the rule that jumps to the latter, or stay.
const (
	// batchSize is the number of chains in a transaction. The kernel takes some 15 µs for each, and other commits wait.
	batchSize = 1000
	// batchPause lets other programs read: iptables-nft begins anew if a commit comes while it reads all rules.
	batchPause = 200 * time.Millisecond
	// The pause after a try in which another program committed begins with firstPause and doubles up to maxPause.
	firstPause, maxPause = 5 * time.Millisecond, time.Second
)

// findNFT lists kube-proxy's chains in nf_tables, also while others commit.
func findNFT(ctx context.Context) (found []foundTable, err error) {
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for _, family := range nft.Families {
		names := map[string][]string{}
		err := conn.EachChain(ctx, family, func(table string, c *nft.Chain) {
			if slices.Contains(tableNames, table) && isRemovable(c.Name) {
				names[table] = append(names[table], strings.Clone(c.Name))
			}
		})
		if err != nil {
			return found, err
		}
		for _, name := range tableNames {
			if len(names[name]) > 0 {
				found = append(found, newFoundTable(table{family, name}, names[name]))
			}
		}
	}
	return found, nil
}

// nftRemover removes chains of iptables-nft.
type nftRemover struct {
	ctx  context.Context
	conn *nft.Conn
	*Removal
}

// removeNFT removes the chains that findNFT has found. A failure in one table does not stop the removal from the others.
func removeNFT(ctx context.Context, found []foundTable, keepShared bool) (removal Removal, err error) {
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return Removal{}, err
	}
	defer conn.Close()
	r := nftRemover{ctx, conn, &removal}
	var errs []error
	failed := map[table]bool{}
	for _, t := range found {
		err := r.cut(t.table, isFixed)
		errs, failed[t.table] = append(errs, err), err != nil
	}
	for _, t := range found {
		if !failed[t.table] {
			errs = append(errs, r.remove(t, keepShared))
		}
	}
	return removal, errors.Join(errs...)
}

// remove removes the chains of a table, after cut has removed the rules that jump to them from base chains.
func (r *nftRemover) remove(t foundTable, keepShared bool) error {
	kept, err := r.delete(t.table, t.chains)
	r.keepChains(t.table, kept)
	switch {
	case err != nil || len(t.shared) == 0:
		return err
	case !keepShared:
		err = r.cut(t.table, func(chain string) bool { return chain == postroutingChain }, deletion(t.table, t.shared)...)
		if err == nil {
			r.removeChains(t.table, t.shared)
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	r.keepChains(t.table, t.shared)
	return nil
}

// cut deletes the rules of base chains that jump to certain chains, and carries out more steps in the same transaction. The
// kernel refuses the transaction if another program has committed since the rules were read, because a handle could be
// another rule's by then. So cut tries until no other program commits in between.
func (r *nftRemover) cut(t table, to func(chain string) bool, more ...nft.Step) error {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := r.cutOnce(t, to, more)
		if !errors.Is(err, nft.ErrGenerationMoved) {
			return err
		}
		if !r.rest(pause) {
			return errors.Join(err, r.ctx.Err())
		}
	}
}

func (r *nftRemover) cutOnce(t table, to func(chain string) bool, more []nft.Step) (err error) {
	var tx nft.Transaction
	if tx.Generation, err = r.conn.Generation(r.ctx); err != nil {
		return err
	}
	for _, hook := range legacyHooks {
		of, err := r.conn.ReadChain(r.ctx, t.family, t.name, baseChain(hook))
		if err != nil {
			return err
		}
		if of == nil || of.Chains[0].Hook == "" {
			continue
		}
		c := of.Chains[0]
		for i, rule := range c.Rules {
			if to(destination(rule)) {
				tx.Steps = append(tx.Steps, nft.Step{Op: nft.DeleteRule, Table: of, Chain: c, Handle: of.Kernel.Handles[c.Name][i]})
			}
		}
	}
	tx.Steps = append(tx.Steps, more...)
	_, err = r.conn.Commit(r.ctx, tx)
	return err
}

// delete deletes chains, and returns the chains that the kernel keeps because something else refers to them.
func (r *nftRemover) delete(t table, chains []string) (kept []string, err error) {
	for {
		kept = nil
		for batch := range slices.Chunk(chains, batchSize) {
			busy, err := r.deleteBatch(t, batch)
			if err != nil {
				return kept, err
			}
			kept = append(kept, busy...)
			if len(batch) == batchSize && !r.rest(batchPause) {
				return kept, r.ctx.Err()
			}
		}
		// A caller may stand in a later batch than a chain that it calls.
		if len(kept) == 0 || len(kept) == len(chains) {
			return kept, nil
		}
		chains = kept
	}
}

// deleteBatch deletes chains in one transaction. If the kernel refuses some chains, deleteBatch deletes the others.
func (r *nftRemover) deleteBatch(t table, chains []string) (busy []string, err error) {
	for {
		_, err := r.conn.Commit(r.ctx, nft.Transaction{Steps: deletion(t, chains)})
		if err == nil {
			r.removeChains(t, chains)
			return busy, nil
		}
		refused := refusedChains(err)
		if len(refused) == 0 {
			return busy, err
		}
		chains = slices.DeleteFunc(slices.Clone(chains), func(name string) bool {
			errno, is := refused[name]
			if is && errno == unix.EBUSY {
				busy = append(busy, name)
			}
			return is
		})
	}
}

// refusedChains returns the chains that the kernel refused to delete because something refers to them (EBUSY), or
// because they have gone (ENOENT); none if it refused anything else.
func refusedChains(err error) map[string]unix.Errno {
	var refused *nft.CommitError
	if !errors.As(err, &refused) {
		return nil
	}
	chains := map[string]unix.Errno{}
	for _, r := range refused.Refused {
		switch errno, _ := r.Err.(unix.Errno); errno {
		case unix.EBUSY, unix.ENOENT:
			chains[r.Step.Chain.Name] = errno
		default:
			return nil
		}
	}
	return chains
}

// deletion returns the steps that delete chains. The chains may jump to each other.
func deletion(t table, chains []string) (steps []nft.Step) {
	of := &nft.Table{Family: t.family, Name: t.name}
	for _, op := range []nft.StepOp{nft.FlushChain, nft.DeleteChain} {
		for _, name := range chains {
			steps = append(steps, nft.Step{Op: op, Table: of, Chain: &nft.Chain{Name: name}})
		}
	}
	return steps
}

// rest waits, and reports whether there is time left.
func (r *nftRemover) rest(pause time.Duration) bool {
	select {
	case <-r.ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// destination returns the chain that a rule jumps or goes to, empty if there is none.
func destination(r nft.Rule) string {
	for _, s := range r.Statements {
		if v, is := s.(nft.Verdict); is && v.Chain != "" {
			return v.Chain
		}
	}
	return ""
}
