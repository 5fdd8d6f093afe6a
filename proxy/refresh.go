package proxy

import (
	"context"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"k8s.io/klog/v2"
)

// refreshInterval is the interval at which the rules are compiled again for what changes without a Sync.
const refreshInterval = 10 * time.Second

// refresh commits what changes with time, or with the node: addresses that have left direct return for long enough, and the
// routes to other nodes.
func (b *Backend) refresh(ctx context.Context) error {
	for sleep(ctx, refreshInterval); ctx.Err() == nil; sleep(ctx, refreshInterval) {
		if err := b.refreshOnce(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *Backend) refreshOnce(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != stateApplied {
		return nil // a Sync or a repair comes
	}
	logger, changes := klog.FromContext(ctx), &model.Changes{}
	b.compiler.Apply(changes)
	b.lookAtEntrance(logger, changes, true)
	return b.update(ctx, logger)
}
