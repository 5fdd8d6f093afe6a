// Package proxy puts the parts together: it is the tracker's backend that compiles the
// model, commits it to the kernel, and repairs what others do to it.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

// Hooks are called as things happen, for metrics. Each may be nil.
type Hooks struct {
	// OnCommit is told of each transaction that the kernel carried out.
	OnCommit func(nft.CommitStats)
	// OnCompile is told how long the compiler took for each Sync.
	OnCompile func(time.Duration)
	// OnForeignChange is told of each time somebody else's changes to the tables were found.
	OnForeignChange func()
	// OnDiverged is told when the tables differ from what is wanted and the kernel refuses the repair, with
	// true, each time that it does, and with false once the repair succeeded.
	OnDiverged func(bool)
	// OnRepair is told of each time the tables were brought in line because they were not as committed.
	OnRepair func()
}

// Backend writes the model to nftables. It implements model.Backend.
type Backend struct {
	conn *nft.Conn
	// reader is for listings that can be long, so that commits do not wait for them.
	reader *nft.Conn
	hooks  Hooks

	// checking keeps checks apart.
	checking sync.Mutex
	// mu keeps Sync, the steps of a check and the affinity reconciler apart. It guards what follows.
	mu       sync.Mutex
	compiler *compiler.Compiler
	state    state
	// toldDiverged is what OnDiverged was told last.
	toldDiverged bool
	// ours says that this process has written the tables before.
	ours bool
	// generation is the kernel's generation number up to which the tables are known to be as committed, counting
	// one for each commit of our own since. commits is how many those were.
	generation, commits uint32
	// failures is how many comparisons failed in a row.
	failures int
	// meanwhile notes what is committed while a comparison with the kernel runs; nil while none does.
	meanwhile *meanwhile
	// listener hears of other programs' commits; nil while nobody watches.
	listener *nft.Listener
	// checkInterval is CheckInterval, but in tests of what does not wait for it.
	checkInterval time.Duration
	// noticed has room for one. It is filled when somebody else may have committed.
	noticed chan struct{}
	// conntrack is where connections are found that affinity is restored from; nil for nowhere.
	conntrack *conntrack.Conn
	// flows is told what is committed; nil for nobody.
	flows    *FlowCleaner
	affinity *affinityReconciler
}

// NewBackend returns a backend that commits through conn.
func NewBackend(conn *nft.Conn, config compiler.Config, hooks Hooks) (*Backend, error) {
	c, err := compiler.New(config)
	if err != nil {
		return nil, err
	}
	reader, err := conn.Another()
	if err != nil {
		return nil, err
	}
	b := &Backend{conn: conn, reader: reader, compiler: c, hooks: hooks, checkInterval: CheckInterval, noticed: make(chan struct{}, 1)}
	b.affinity = newAffinityReconciler(b)
	return b, nil
}

// Close closes the connections that the backend has opened besides its own. Nothing may run any more. The rules stay.
func (b *Backend) Close() error { return b.reader.Close() }

// RemoveStaleFlows makes each Sync that succeeded leave it to c to remove UDP flows to
// endpoints that do not serve any more. It must be called before the first Sync.
func (b *Backend) RemoveStaleFlows(c *FlowCleaner) { b.flows, b.conntrack = c, c.table }

// Sync brings the kernel in line with the changes, in one transaction for both IP families.
// The first one reads back what the kernel holds, and changes only what differs.
// When it holds another program's tables, stand-ins serve while those are replaced.
// When the kernel refuses a transaction, its tables are probably not what they were after the last
// commit (somebody flushed the ruleset), so Sync reads them back and brings them in line, if need be by
// replacing them whole, in one transaction again. When that is refused too it returns the error, the kernel is
// as it was, and the next Sync has everything that this one had. A sweep of session affinity may follow. Stale UDP
// flows are removed later, by the FlowCleaner.
func (b *Backend) Sync(ctx context.Context, changes *model.Changes) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	logger := klog.FromContext(ctx)
	begin := time.Now()
	conflicts := b.compiler.Apply(changes)
	if b.hooks.OnCompile != nil {
		b.hooks.OnCompile(time.Since(begin))
	}
	for _, c := range conflicts {
		logConflict(logger, c)
	}
	if err := b.update(ctx, logger); err != nil {
		return err
	}
	if b.flows != nil {
		b.flows.note(b.compiler, changes) // after the commit: the old rules could make a removed flow anew
	}
	b.affinity.signal()
	return nil
}

// update commits what changed; if the kernel refuses that, what differs from what it holds.
func (b *Backend) update(ctx context.Context, logger klog.Logger) error {
	if b.state.kind == stateApplied {
		err := b.commit(ctx)
		if err == nil {
			return nil
		}
		logger.Info("Reconciling the tables, because the kernel refused a change to them", "reason", err.Error())
	}
	again := b.ours
	if err := b.reconcile(ctx, logger); err != nil {
		return err
	}
	if again {
		b.repaired()
	}
	return nil
}

// diverged tells whether the kernel refuses to have the tables repaired.
func (b *Backend) diverged(yes bool) {
	b.toldDiverged = yes
	if b.hooks.OnDiverged != nil {
		b.hooks.OnDiverged(yes)
	}
}

func (b *Backend) repaired() {
	if b.flows != nil {
		b.flows.repaired()
	}
	if b.hooks.OnRepair != nil {
		b.hooks.OnRepair()
	}
}

func logConflict(logger klog.Logger, c compiler.Conflict) {
	logger.Info("Several Services claim the same address; only one gets it", "address", c.Frontend, "owner", c.Owner.ServicePortName(), "others", names(c.Others))
}

// reconcile makes whatever the kernel holds, from a run before, from another proxy, or after somebody else changed it,
// what is wanted. It leaves alone what is right already: while a table is replaced, a packet on
// its way through the old rules may find their maps empty.
func (b *Backend) reconcile(ctx context.Context, logger klog.Logger) error {
	if err := b.reconcileTables(ctx, logger); err != nil {
		return err
	}
	if err := b.removeStandIns(); err != nil {
		b.state = state{} // the next Sync tries again
		return err
	}
	return nil
}

func (b *Backend) reconcileTables(ctx context.Context, logger klog.Logger) error {
	tx, err := b.difference(ctx)
	switch {
	case ctx.Err() != nil:
		b.state = state{}
		return ctx.Err() // tables that were not read to the end may well be readable
	case err != nil:
		logger.Info("Replacing the tables, because they cannot be read", "reason", err.Error())
	case tx.AddsTable(), !b.ours && changesBaseChains(tx):
		logger.V(2).Info("Making the tables anew, because they are not there or another program's")
	default:
		if err = b.sendWithAffinity(ctx, tx); err == nil {
			return nil
		}
		logger.Info("Replacing the tables, because the kernel refused the difference", "reason", err.Error())
	}
	if b.ours {
		return b.replace(ctx, b.send)
	}
	return b.takeOver(ctx, logger)
}

// changesBaseChains reports whether a transaction changes a base chain: another program, or another version of this one, wrote
// the table, and packets are on their way through its rules.
func changesBaseChains(tx nft.Transaction) bool {
	return slices.ContainsFunc(tx.Steps, func(s nft.Step) bool { return s.Chain != nil && s.Chain.Hook != "" })
}

// differenceAttempts is how often the tables are read when others commit meanwhile.
const differenceAttempts = 10

// difference reads both tables and returns the transaction that makes them what is wanted.
func (b *Backend) difference(ctx context.Context) (nft.Transaction, error) {
	for attempt := 1; ; attempt++ {
		tx, err := b.differenceOnce(ctx)
		if !errors.Is(err, nft.ErrGenerationMoved) || attempt == differenceAttempts {
			return tx, err
		}
	}
}

func (b *Backend) differenceOnce(ctx context.Context) (tx nft.Transaction, err error) {
	if b.generation, err = b.conn.Generation(); err != nil {
		return tx, err
	}
	for _, want := range b.compiler.Tables() {
		step, err := b.reader.Compare(ctx, want, nft.Comparison{})
		if err != nil {
			return tx, err
		}
		tx.Append(step)
	}
	return tx, nil
}

// replace commits both tables whole, whatever the kernel holds. The clients in maps of session affinity go along as far
// as they can be read in time.
func (b *Backend) replace(ctx context.Context, send func(nft.Transaction) error) error {
	kept := b.keptAffinity(ctx)
	if err := ctx.Err(); err != nil {
		return err // before the clients were read
	}
	b.compiler.Invalidate()
	b.state = state{}
	tx := b.compiler.Transaction()
	tx.Append(kept)
	if err := send(tx); err != nil {
		return fmt.Errorf("program the rules: %w", err)
	}
	b.affinity.signal()
	return nil
}

func (b *Backend) commit(ctx context.Context) error {
	return b.sendWithAffinity(ctx, b.compiler.Transaction())
}

// sendWithAffinity sends a transaction together with the changes to maps of clients that follow from it. Packets and time
// change those maps too, which can make the kernel refuse the whole; then the transaction goes alone.
func (b *Backend) sendWithAffinity(ctx context.Context, tx nft.Transaction) error {
	changes := b.affinityChanges(ctx)
	if changes.Empty() {
		return b.send(tx)
	}
	whole := nft.Transaction{Steps: slices.Concat(tx.Steps, changes.Steps)}
	err := b.send(whole)
	if refused := (*nft.CommitError)(nil); errors.As(err, &refused) {
		return b.send(tx)
	}
	return err
}

// send has the kernel carry out a transaction that makes it hold what is wanted.
func (b *Backend) send(tx nft.Transaction) error {
	if err := b.carryOut(tx); err != nil {
		return err
	}
	b.compiler.Committed()
	if b.toldDiverged {
		b.diverged(false)
	}
	b.state = state{kind: stateApplied}
	b.ours = true
	return nil
}

// carryOut has the kernel carry out a transaction, if there is something to do.
func (b *Backend) carryOut(tx nft.Transaction) error {
	if tx.Empty() {
		return nil
	}
	b.meanwhile.note(tx)
	stats, err := b.commitUnheard(tx)
	if err != nil {
		return err
	}
	b.generation++
	b.commits++
	if b.hooks.OnCommit != nil {
		b.hooks.OnCommit(stats)
	}
	return nil
}

// commitUnheard commits while nobody of this process listens: the kernel describes each element of a commit to those who do,
// which takes time. What others commit meanwhile is found by the generation number.
func (b *Backend) commitUnheard(tx nft.Transaction) (nft.CommitStats, error) {
	if b.listener == nil {
		return b.conn.Commit(tx)
	}
	left := b.listener.Leave() == nil
	stats, err := b.conn.Commit(tx)
	if left && b.listener.Join() != nil {
		return stats, err // the next check asks by itself
	}
	if now, failed := b.conn.Generation(); failed != nil || now != b.generation+1 {
		b.notice()
	}
	return stats, err
}

// notice has the next check come at once.
func (b *Backend) notice() {
	select {
	case b.noticed <- struct{}{}:
	default:
	}
}

// Tables returns the rulesets as they are wanted now. They are valid until the next Sync.
func (b *Backend) Tables() []*nft.Table {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.compiler.Tables()
}

// Cleanup removes the tables of both families in one transaction, whoever made them; tables
// that are not there are no error.
func Cleanup(conn *nft.Conn) error {
	var tx nft.Transaction
	for _, family := range nft.Families {
		tx.Append(nft.Remove(family, compiler.TableName))
		tx.Append(nft.Remove(family, compiler.StandInName))
	}
	_, err := conn.Commit(tx)
	return err
}

func names(ids []model.PortID) []string {
	var out []string
	for _, id := range ids {
		out = append(out, id.ServicePortName())
	}
	return out
}
