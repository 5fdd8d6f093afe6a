package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

// Check compares the kernel's tables with the wanted ones, if anybody else has committed since the last time, and
// commits the difference. It reports whether it repaired them. Other tables do not matter. Syncs can run while the
// kernel lists the tables.
func (b *Backend) Check(ctx context.Context) (repaired bool, err error) {
	conn, err := b.conn.Another()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	_, repaired, err = b.check(ctx, conn, true)
	return repaired, err
}

// check adds missing tables and, with compare, compares the tables over conn. compared is how long that took, without
// waits for Syncs.
func (b *Backend) check(ctx context.Context, conn *nft.Conn, compare bool) (compared time.Duration, repaired bool, err error) {
	b.checking.Lock()
	defer b.checking.Unlock()
	c, repaired, err := b.beginCheck(ctx, compare)
	if c == nil || err != nil {
		return 0, repaired, err
	}
	defer b.endComparison()
	var tx nft.Transaction
	compared = c.lock.work(func() { tx, err = c.attempt(ctx, conn) })
	switch {
	case errors.Is(err, nft.ErrGenerationMoved):
	case err != nil:
		repaired, err = b.cannotCompare(ctx, err)
	default:
		repaired, err = b.endCheck(ctx, c, tx)
	}
	return compared, repaired, err
}

// attempt compares until it succeeds, or the kernel's tables have changed too often meanwhile.
func (c *comparison) attempt(ctx context.Context, conn *nft.Conn) (tx nft.Transaction, err error) {
	for range differenceAttempts {
		if tx, err = c.compare(ctx, conn); !errors.Is(err, nft.ErrGenerationMoved) {
			break
		}
	}
	return tx, err
}

// comparisonFailures is how many comparisons in a row must fail until the tables are reconciled.
const comparisonFailures = 3

// cannotCompare counts comparisons that failed for another reason than changes of the ruleset. After too many it
// reconciles the tables, which replaces them if they cannot be read.
func (b *Backend) cannotCompare(ctx context.Context, err error) (repaired bool, _ error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
	if ctx.Err() != nil || b.failures < comparisonFailures || b.state.kind != stateApplied {
		return false, err
	}
	b.failures = 0
	return b.repair(ctx, "replace what cannot be read: "+err.Error())
}

// comparison is one comparison of the kernel's tables with the wanted ones.
type comparison struct {
	backend *Backend
	wanted  []*nft.Table
	// generation is the kernel's number, and commits the number of own commits, when it began.
	generation, commits uint32
	meanwhile           *meanwhile
	// lock is Backend.mu.
	lock measuredLock
}

// beginCheck does the quick part of a check. It returns nil if no comparison is needed.
func (b *Backend) beginCheck(ctx context.Context, compare bool) (c *comparison, repaired bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.state.kind {
	case stateDiverged:
		repaired, err = b.repair(ctx, b.state.reason)
		return nil, repaired, err
	case stateNew, stateUnknown:
		return nil, false, nil // the next Sync reads the tables
	}
	generation, err := b.conn.Generation(ctx)
	if err != nil || generation == b.generation {
		return nil, false, err
	}
	if foreign, err := b.missingTables(ctx); err != nil || foreign != "" {
		if err != nil {
			return nil, false, err
		}
		b.foreignChange()
		repaired, err = b.repair(ctx, foreign)
		return nil, repaired, err
	}
	if err := b.removeStandIns(ctx); err != nil || !compare {
		return nil, false, err
	}
	b.meanwhile = newMeanwhile()
	return &comparison{b, b.compiler.Tables(), generation, b.commits, b.meanwhile, measuredLock{mu: &b.mu}}, false, nil
}

func (b *Backend) endComparison() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.meanwhile = nil
}

// errOvertaken says that a Sync replaced the tables while they were compared.
var errOvertaken = errors.New("a Sync replaced the tables meanwhile")

// compare returns the transaction that turns the kernel's tables into the wanted ones. A Sync waits for it at most as
// long as it takes to compare some hundred elements.
func (c *comparison) compare(ctx context.Context, conn *nft.Conn) (tx nft.Transaction, err error) {
	guard := func(work func()) error {
		c.lock.Lock()
		defer c.lock.Unlock()
		if c.meanwhile.all {
			return errOvertaken
		}
		work()
		return nil
	}
	tx, _, err = c.backend.compare(ctx, conn, c.wanted, guard)
	if errors.Is(err, errOvertaken) {
		return nft.Transaction{}, nil // the Sync has reconciled the tables
	}
	return tx, err
}

// endCheck commits the difference that a comparison has found.
func (b *Backend) endCheck(ctx context.Context, c *comparison, tx nft.Transaction) (repaired bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.kind != stateApplied || c.meanwhile.all {
		return false, nil
	}
	b.failures = 0
	tx, left := c.meanwhile.without(tx)
	if !left { // else the next check compares again
		b.generation = c.generation + b.commits - c.commits
	}
	if tx.Empty() {
		return false, nil
	}
	b.foreignChange()
	foreign := describe(tx)
	if !tx.AddsTable() && b.commit(ctx, tx) == nil {
		b.logForeignChange(klog.FromContext(ctx), foreign)
		b.afterRepair()
		return true, nil
	}
	return b.repair(ctx, foreign)
}

func (b *Backend) foreignChange() {
	if b.hooks.OnForeignChange != nil {
		b.hooks.OnForeignChange()
	}
}

func (b *Backend) logForeignChange(logger klog.Logger, repair string) {
	logger.Info("Somebody else changed the proxy's tables; repairing them", "repair", repair, "lastCommit", b.lastForeignCommit())
}

// lastForeignCommit says who was heard committing last; it may have been to other tables.
func (b *Backend) lastForeignCommit() string {
	if heard := b.foreign.Load(); heard != nil {
		return heard.String()
	}
	return "not heard"
}

// repair reconciles the tables. If that fails, the state is stateDiverged, and the next check tries again.
func (b *Backend) repair(ctx context.Context, foreign string) (repaired bool, err error) {
	logger := klog.FromContext(ctx)
	if b.state.kind != stateDiverged {
		b.logForeignChange(logger, foreign)
	}
	if err := b.reconcile(ctx, logger); err != nil {
		b.state = state{stateDiverged, foreign}
		b.callOnDiverged(true)
		return false, err
	}
	b.afterRepair()
	return true, nil
}

// missingTables returns the steps that add missing tables, in words; "" for none.
func (b *Backend) missingTables(ctx context.Context) (string, error) {
	there, err := familiesWith(ctx, b.conn, compiler.TableNameFor(b.serviceProxyName))
	if err != nil {
		return "", err
	}
	var parts []string
	for _, want := range b.compiler.Tables() {
		if !slices.Contains(there, want.Family) {
			parts = append(parts, fmt.Sprintf("add table %s %s", want.Family, want.Name))
		}
	}
	return strings.Join(parts, "; "), nil
}

// describe returns a transaction in one line, for logs.
func describe(tx nft.Transaction) string {
	const shown = 5
	var parts []string
	for _, step := range tx.Steps[:min(shown, len(tx.Steps))] {
		parts = append(parts, firstLine(step))
	}
	if more := len(tx.Steps) - shown; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more steps", more))
	}
	return strings.Join(parts, "; ")
}

func firstLine(step nft.Step) string {
	line, _, _ := strings.Cut(step.String(), "\n")
	return strings.TrimSuffix(line, " {")
}
