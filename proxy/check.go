package proxy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

// CheckInterval is how often Watch asks the kernel whether anybody committed anything. It
// asks for one number, which costs microseconds. Listening to the kernel's notifications
// instead would make it describe each element of our own commits to us.
const CheckInterval = time.Second

// readShare bounds the time that Watch spends reading tables back to one part in this many.
const readShare = 20

// Watch checks the tables again and again, and repairs them, until ctx ends. It finds out at
// once when a table is gone. What others did inside of one it finds by reading both back,
// which it does less often the longer that takes.
func (b *Backend) Watch(ctx context.Context) {
	logger := klog.FromContext(ctx)
	reconcilerDone := make(chan struct{})
	go func() {
		defer close(reconcilerDone)
		b.affinity.run(ctx)
	}()
	defer func() { <-reconcilerDone }()
	tick := time.NewTicker(CheckInterval)
	defer tick.Stop()
	var nextRead time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		begin := time.Now()
		read := !begin.Before(nextRead)
		if _, err := b.check(ctx, read); err != nil {
			logger.Error(err, "Cannot check the tables; trying again")
		}
		if read {
			nextRead = begin.Add(readShare * time.Since(begin))
		}
	}
}

// Check compares what the kernel holds with what was committed, if anybody else has
// committed anything since the last time, and brings them in line if they differ. It reports
// whether it had to. Rules that others put elsewhere are none of its business.
func (b *Backend) Check(ctx context.Context) (repaired bool, err error) {
	return b.check(ctx, true)
}

// check looks whether the tables are still there and, with read, what they hold.
func (b *Backend) check(ctx context.Context, read bool) (repaired bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.state.kind {
	case stateDiverged:
		return b.repair(ctx, b.state.reason)
	case stateUnknown:
		return false, nil // the next Sync reads the tables itself
	}
	generation, err := b.conn.Generation()
	if err != nil || generation == b.generation {
		return false, err
	}
	foreign, err := b.missingTables()
	if err != nil || foreign == "" && !read {
		return false, err
	}
	if foreign == "" {
		foreign, err = b.confirmedChanges()
	}
	if err != nil {
		return false, err
	}
	b.generation = generation
	if foreign == "" {
		return false, nil
	}
	if b.hooks.OnForeignChange != nil {
		b.hooks.OnForeignChange()
	}
	return b.repair(ctx, foreign)
}

// repair brings the tables in line. When the kernel refuses that, the next check tries again.
func (b *Backend) repair(ctx context.Context, foreign string) (repaired bool, err error) {
	logger := klog.FromContext(ctx)
	logger.Info("Somebody else changed the proxy's tables; bringing them in line", "repair", foreign)
	if err := b.reconcile(ctx, logger); err != nil {
		b.state = state{stateDiverged, foreign}
		return false, err
	}
	b.repaired()
	return true, nil
}

// missingTables says which tables are not there any more.
func (b *Backend) missingTables() (string, error) {
	there, err := b.tablesThere(compiler.TableName)
	if err != nil {
		return "", err
	}
	var parts []string
	for _, family := range nft.Families {
		if !slices.Contains(there, family) {
			parts = append(parts, fmt.Sprintf("add table %s %s", family, compiler.TableName))
		}
	}
	return strings.Join(parts, "; "), nil
}

// confirmedChanges returns what two readings agree on. Before kernel 6.15 a listing cannot be checked for
// elements that the kernel left out while it rehashed a set.
func (b *Backend) confirmedChanges() (string, error) {
	first, err := b.foreignChanges()
	if err != nil || first == "" {
		return "", err
	}
	second, err := b.foreignChanges()
	if err == nil && second != first {
		err = fmt.Errorf("two readings differ: the tables need %q, then %q", first, second)
	}
	return first, err
}

// foreignChanges says what it would take to undo what others did to the tables; empty when
// they are as committed.
func (b *Backend) foreignChanges() (string, error) {
	tx, err := b.difference()
	if err != nil {
		return "", err
	}
	const shown = 5
	var parts []string
	for _, step := range tx.Steps[:min(shown, len(tx.Steps))] {
		parts = append(parts, firstLine(step))
	}
	if more := len(tx.Steps) - shown; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more steps", more))
	}
	return strings.Join(parts, "; "), nil
}

func firstLine(step nft.Step) string {
	line, _, _ := strings.Cut(step.String(), "\n")
	return strings.TrimSuffix(line, " {")
}
