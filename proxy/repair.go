package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

// repairer finds what others change in the kernel's tables, and undoes it. A check holds checking, and Backend.mu for
// each step, so that a Sync waits for microseconds while the kernel lists the tables.
type repairer struct {
	backend  *Backend
	checking sync.Mutex
	// interval is CheckInterval; tests change it.
	interval time.Duration

	// Only run uses the fields below. checked is the generation number before the last check, which may have been the
	// own commit of a Sync. unfinished says that the check left a comparison to be made. The tables may be compared from
	// nextComparison on; retry gives the waits after failures.
	checked        uint32
	unfinished     bool
	nextComparison time.Time
	conflict       repairConflict
	retry          *backoff.ExponentialBackOff

	// Backend.mu guards the fields below.

	// concurrent records the own commits while a comparison runs; nil while none does.
	concurrent *concurrentChanges
	// failures counts the comparisons that failed in a row.
	failures int
}

func newRepairer(b *Backend) *repairer {
	return &repairer{backend: b, interval: CheckInterval, conflict: newRepairConflict(), retry: newBackOff(firstRetryDelay)}
}

// Check compares the kernel's tables with the wanted tables, if another program has committed since the last check, and
// commits the difference. It reports whether it repaired them. Other tables do not matter. Syncs can run while the
// kernel lists the tables.
func (b *Backend) Check(ctx context.Context) (repaired bool, err error) {
	conn, err := b.conn.Another()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	result, err := b.repairs.check(ctx, conn, true)
	return result.repaired, err
}

// checkResult is the outcome of a check.
type checkResult struct {
	repaired bool
	// unfinished says that the tables have to be compared (again).
	unfinished bool
	// compared is the time that the comparison took, without waits for Syncs.
	compared time.Duration
}

// check adds missing tables and, with compare, compares the tables over conn.
func (r *repairer) check(ctx context.Context, conn *nft.Conn, compare bool) (result checkResult, err error) {
	r.checking.Lock()
	defer r.checking.Unlock()
	c, repaired, err := r.begin(ctx)
	if c == nil || err != nil {
		return checkResult{repaired: repaired}, err
	}
	defer r.end()
	if !compare {
		return checkResult{unfinished: true}, nil
	}
	var tx nft.Transaction
	result.compared = c.lock.work(func() { tx, err = c.run(ctx, conn) })
	switch {
	case errors.Is(err, nft.ErrGenerationMoved):
	case err != nil:
		result.repaired, err = r.cannotCompare(ctx, err)
	default:
		result.repaired, result.unfinished, err = r.undo(ctx, c, tx)
	}
	return result, err
}

// begin does the quick part of a check: it adds missing tables. It returns nil if no comparison is needed, because
// no other program has committed. The caller calls end after the comparison.
func (r *repairer) begin(ctx context.Context) (c *comparison, repaired bool, err error) {
	b := r.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.state {
	case stateDiverged:
		repaired, err = r.repair(ctx)
		return nil, repaired, err
	case stateNew, stateUnknown:
		return nil, false, nil // the next Sync reads the tables
	}
	generation, err := b.conn.Generation(ctx)
	if err != nil || generation == b.generation {
		return nil, false, err
	}
	there, err := familiesWith(ctx, b.conn, compiler.TableNameFor(b.serviceProxyName))
	if err != nil {
		return nil, false, err
	}
	var missing nft.Transaction
	for _, want := range b.compiler.Tables() {
		if !slices.Contains(there, want.Family) {
			missing.Steps = append(missing.Steps, nft.Step{Op: nft.AddTable, Table: want})
		}
	}
	if !missing.Empty() {
		r.foundChange(ctx, describe(missing))
		repaired, err = r.repair(ctx)
		return nil, repaired, err
	}
	if err := b.removeTemporary(ctx); err != nil {
		return nil, false, err
	}
	r.concurrent = newConcurrentChanges()
	return &comparison{b.compiler.Tables(), generation, b.commits, r.concurrent, measuredLock{mu: &b.mu}}, false, nil
}

func (r *repairer) end() {
	r.backend.mu.Lock()
	defer r.backend.mu.Unlock()
	r.concurrent = nil
}

type comparison struct {
	wanted []*nft.Table
	// generation is the kernel's number, and commits the number of own commits, when it began.
	generation, commits uint32
	concurrent          *concurrentChanges
	// lock is Backend.mu.
	lock measuredLock
}

// errOvertaken says that a Sync replaced the tables while they were compared.
var errOvertaken = errors.New("a Sync replaced the tables")

// run returns the transaction that turns the kernel's tables into the wanted tables. It compares until it succeeds, or
// the tables have changed too often. A Sync waits for it at most as long as it takes to compare some hundred elements.
func (c *comparison) run(ctx context.Context, conn *nft.Conn) (tx nft.Transaction, err error) {
	guard := func(work func()) error {
		c.lock.Lock()
		defer c.lock.Unlock()
		if c.concurrent.all {
			return errOvertaken
		}
		work()
		return nil
	}
	for range differenceAttempts {
		if tx, _, err = compare(ctx, conn, c.wanted, nft.CompareOptions{Guard: guard}); !errors.Is(err, nft.ErrGenerationMoved) {
			break
		}
	}
	if errors.Is(err, errOvertaken) {
		return nft.Transaction{}, nil // the Sync has reconciled the tables
	}
	return tx, err
}

// comparisonFailures is the number of failed comparisons in a row after which the tables are reconciled.
const comparisonFailures = 3

// cannotCompare counts comparisons that failed for another reason than changes of the ruleset. After too many it
// reconciles the tables, which replaces them if they cannot be read.
func (r *repairer) cannotCompare(ctx context.Context, err error) (repaired bool, _ error) {
	r.backend.mu.Lock()
	defer r.backend.mu.Unlock()
	r.failures++
	if ctx.Err() != nil || r.failures < comparisonFailures || r.backend.state != stateApplied {
		return false, err
	}
	r.failures = 0
	r.logChange(ctx, "replace what cannot be read: "+err.Error())
	return r.repair(ctx)
}

// undo commits the difference that a comparison has found, without what own commits changed at the same time: left says
// that there was such a difference, so that the tables have to be compared again.
func (r *repairer) undo(ctx context.Context, c *comparison, tx nft.Transaction) (repaired, left bool, err error) {
	b := r.backend
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != stateApplied || c.concurrent.all {
		return false, true, nil
	}
	r.failures = 0
	tx, left = c.concurrent.without(tx)
	if !left {
		b.generation = c.generation + b.commits - c.commits
	}
	if tx.Empty() {
		return false, left, nil
	}
	r.foundChange(ctx, describe(tx))
	if !tx.AddsTable() && b.commit(ctx, tx) == nil {
		b.repaired()
		return true, left, nil
	}
	repaired, err = r.repair(ctx)
	return repaired, left, err
}

// repair reconciles the tables. If that fails, the next check tries again.
func (r *repairer) repair(ctx context.Context) (repaired bool, err error) {
	b := r.backend
	if err := b.reconcile(ctx, klog.FromContext(ctx)); err != nil {
		b.becomeDiverged()
		return false, err
	}
	b.repaired()
	return true, nil
}

func (r *repairer) foundChange(ctx context.Context, repair string) {
	if r.backend.hooks.OnExternalChange != nil {
		r.backend.hooks.OnExternalChange()
	}
	r.logChange(ctx, repair)
}

func (r *repairer) logChange(ctx context.Context, repair string) {
	klog.FromContext(ctx).Info("Another program changed the proxy's tables; repairing them", "repair", repair)
}

func describe(tx nft.Transaction) string {
	const shown = 5
	var parts []string
	for _, step := range tx.Steps[:min(shown, len(tx.Steps))] {
		line, _, _ := strings.Cut(step.String(), "\n")
		parts = append(parts, strings.TrimSuffix(line, " {"))
	}
	if more := len(tx.Steps) - shown; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more steps", more))
	}
	return strings.Join(parts, "; ")
}
