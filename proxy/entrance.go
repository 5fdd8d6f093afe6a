package proxy

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"k8s.io/klog/v2"
)

// entrance is what direct return knows of the node that packets enter.
type entrance struct {
	// to has the addresses of endpoints that were looked at, sorted, and own those of the Node.
	to, own []netip.Addr
	// known says that a look succeeded.
	known bool
	// obstacle says why packets that this node forwards as they are would not reach endpoints on other nodes, or would
	// leave unencrypted. Then it forwards none. Empty if nothing is in the way.
	obstacle string
	// inside has the devices by which packets come from inside the node, or from networks for which it is the gateway. The
	// node translates them, so they are not forwarded as they are.
	inside []string
}

// lookAtNew looks, before packets are forwarded to the endpoints that a Sync brings, at the routes to them alone: a Sync must
// not pay for all others. What changes on the node without a Sync is found by refresh.
func (b *Backend) lookAtNew(logger klog.Logger, changes *model.Changes) {
	e := &b.entrance
	if changes.Node != nil {
		e.own = changes.Node.IPs
	}
	before := e.to
	e.to = b.compiler.ForwardsTo()
	added := slices.DeleteFunc(slices.Clone(e.to), func(addr netip.Addr) bool {
		_, is := slices.BinarySearchFunc(before, addr, netip.Addr.Compare)
		return is
	})
	if len(added) == 0 || b.hooks.Obstacle == nil {
		return
	}
	obstacle, err := b.hooks.Obstacle(added)
	obstacle, inside := cmp.Or(e.obstacle, obstacle), e.inside
	if !e.known && err == nil {
		inside, err = b.hooks.Inside(e.own)
	}
	b.enter(logger, obstacle, inside, err)
}

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

// refreshOnce looks while Syncs run. If one of them brings other endpoints meanwhile, the next refresh looks at all again.
func (b *Backend) refreshOnce(ctx context.Context) error {
	b.mu.Lock()
	seen := b.entrance
	b.mu.Unlock()
	var obstacle string
	var inside []string
	var err error
	if len(seen.to) > 0 && b.hooks.Obstacle != nil {
		if obstacle, err = b.hooks.Obstacle(seen.to); err == nil {
			inside, err = b.hooks.Inside(seen.own)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != stateApplied || !slices.Equal(seen.to, b.entrance.to) {
		return nil // a Sync or a repair comes, or came
	}
	logger := klog.FromContext(ctx)
	b.compiler.Apply(&model.Changes{})
	b.enter(logger, obstacle, inside, err)
	return b.update(ctx, logger)
}

// enter applies what a look found. After a failure the entrance stays as it was; a first failure is an obstacle.
func (b *Backend) enter(logger klog.Logger, obstacle string, inside []string, err error) {
	e := &b.entrance
	if err != nil {
		logger.Error(err, "Direct return: cannot look at the routes to other nodes")
		if obstacle, inside = e.obstacle, e.inside; !e.known {
			obstacle = err.Error()
		}
	}
	e.known = e.known || err == nil && len(e.to) > 0
	if obstacle != e.obstacle {
		if obstacle != "" {
			logger.Info("Direct return: this node forwards nothing; clients that enter by it are masqueraded", "reason", obstacle)
		} else {
			logger.Info("Direct return: nothing keeps this node from forwarding any more")
		}
		call(b.hooks.OnObstacle, obstacle)
	} else if slices.Equal(inside, e.inside) {
		return
	}
	if len(inside) > 0 && !slices.Equal(inside, e.inside) {
		logger.Info("Direct return: clients that enter by these devices are masqueraded: this node is the gateway of their networks",
			"devices", inside[:min(len(inside), maxNamed)], "count", len(inside))
	}
	e.obstacle, e.inside = obstacle, inside
	b.compiler.LimitForwarding(obstacle != "", inside)
	b.compiler.Apply(&model.Changes{})
}
