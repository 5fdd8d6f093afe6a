package proxy

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

// CheckInterval is how often Watch asks the kernel whether anybody committed anything. It
// asks for one number, which costs microseconds. Listening to the kernel's notifications
// instead would make it describe each element of our own commits to us.
const CheckInterval = time.Second

// checkShare bounds the time spent reading tables back to one part in this many.
const checkShare = 20

// Watch checks the tables again and again, and repairs them, until ctx ends.
func (b *Backend) Watch(ctx context.Context) {
	logger := klog.FromContext(ctx)
	for wait := CheckInterval; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		begin := time.Now()
		if _, err := b.Check(ctx); err != nil {
			logger.Error(err, "Cannot check the tables; trying again")
		}
		wait = max(CheckInterval, checkShare*time.Since(begin))
	}
}

// Check compares what the kernel holds with what was committed, if anybody else has
// committed anything since the last time, and replaces the tables if they differ. It reports
// whether it had to. Rules that others put elsewhere are none of its business.
func (b *Backend) Check(ctx context.Context) (repaired bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.current {
		return false, nil // the next Sync replaces everything
	}
	generation, err := b.conn.Generation()
	if err != nil || generation == b.generation {
		return false, err
	}
	foreign, err := b.foreignChanges()
	if err != nil {
		return false, err
	}
	seen := b.generation
	b.generation = generation
	if foreign == "" {
		return false, nil
	}
	klog.FromContext(ctx).Info("Somebody else changed the proxy's tables; replacing them", "repair", foreign)
	if err := b.replace(); err != nil {
		b.generation = seen // look again next time
		return false, err
	}
	b.repaired()
	return true, nil
}

// foreignChanges says what it would take to undo what others did to the tables; empty when
// they are as committed.
func (b *Backend) foreignChanges() (string, error) {
	var parts []string
	for _, want := range b.compiler.Tables() {
		have, err := b.conn.ReadTable(want.Family, want.Name)
		if err != nil {
			return "", err
		}
		if have == nil {
			parts = append(parts, fmt.Sprintf("add table %s %s", want.Family, want.Name))
			continue
		}
		for _, step := range nft.Diff(have, want).Steps {
			parts = append(parts, firstLine(step))
		}
	}
	const shown = 5
	if len(parts) > shown {
		parts = append(parts[:shown], fmt.Sprintf("and %d more steps", len(parts)-shown))
	}
	return strings.Join(parts, "; "), nil
}

func firstLine(step nft.Step) string {
	line, _, _ := strings.Cut(step.String(), "\n")
	return strings.TrimSuffix(line, " {")
}
