package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/nodeaddr"
	"github.com/nftproxy/nftproxy/model"
	"k8s.io/klog/v2"
)

// firstFlowRetry is how long Run waits after a search that failed. It doubles with each failure, up to maxRetryDelay.
const firstFlowRetry = 100 * time.Millisecond

// FlowCleaner removes entries from the connection tracking table: stale UDP flows, so that the client's next packet
// goes to an endpoint that serves, and connections that began while there were no rules. Syncs only note the frontends
// to search for. So a table that is large, or cannot be listed, delays no Sync. The notes are merged, and never exceed
// the number of UDP frontends of all Services by more than 100,000.
type FlowCleaner struct {
	netNS    int
	table    *conntrack.Conn
	onSearch func(model.Family, conntrack.Stats, error)
	flows    *udpFlows
	serves   frontendServes
	// gaps counts how often connections may have begun without rules: before the first Sync and before each repair.
	// gapsSearched is the count at the last search for them that succeeded.
	gaps, gapsSearched atomic.Uint32
	// wake starts a search.
	wake wakeup
	// searching is held during a search.
	searching sync.Mutex
}

// NewFlowCleaner returns a FlowCleaner for the network namespace of the file descriptor netNS, which must stay open as
// long as the FlowCleaner is used; 0 means the current namespace. It begins to work when Backend.RemoveStaleFlows was
// called with it and Run runs. onSearch, which may be nil, is called after each search for stale UDP flows, with its
// error if it failed.
func NewFlowCleaner(netNS int, onSearch func(model.Family, conntrack.Stats, error)) (*FlowCleaner, error) {
	table, err := conntrack.Dial(netNS)
	if err != nil {
		return nil, err
	}
	if onSearch == nil {
		onSearch = func(model.Family, conntrack.Stats, error) {}
	}
	return &FlowCleaner{netNS: netNS, table: table, onSearch: onSearch, flows: newUDPFlows(), wake: newWakeup()}, nil
}

// note records the changes that a Sync has committed. Those of a failed Sync come again with the next (model.Backend).
func (c *FlowCleaner) note(rules *compiler.Compiler, changes *model.Changes) {
	if c.flows.apply(rules, changes) || c.gaps.Load() != c.gapsSearched.Load() {
		c.wake.signal()
	}
}

// repaired notes all frontends, because packets may have passed untranslated before the repair.
func (c *FlowCleaner) repaired() {
	c.flows.lookAtAll()
	c.begun()
	c.wake.signal()
}

// begun makes the next search look for untranslated connections, because there may have been no rules until now.
func (c *FlowCleaner) begun() { c.gaps.Add(1) }

// Run searches after each Sync that noted something, until ctx ends. After a failure it tries again with back-off; new
// changes do not wait for that. After a search it rests for as long as the search took. It logs the first of several
// failures, and their end.
func (c *FlowCleaner) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	// retry fires wait after a search that failed.
	var retry <-chan time.Time
	var wait time.Duration
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-retry:
		}
		begin := time.Now()
		err := c.Clean(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if wait == 0 {
				logger.Error(err, "Cannot remove all stale UDP flows, trying again; this is logged once")
			}
			wait = min(max(2*wait, firstFlowRetry), maxRetryDelay)
			retry = time.After(wait)
		case wait > 0:
			logger.Info("Stale UDP flows can be removed again")
			retry, wait = nil, 0
		}
		sleep(ctx, time.Since(begin))
	}
}

// Clean searches now, for the frontends that Syncs before the call have noted: at most once for each IP family and
// protocol. It returns an error if a search or a deletion failed; the next Clean tries again.
func (c *FlowCleaner) Clean(ctx context.Context) error {
	c.searching.Lock()
	defer c.searching.Unlock()
	var failures []error
	for _, family := range model.Families {
		some, nodePorts, upTo := c.flows.begin(family)
		if !some {
			continue
		}
		stats, err := c.search(ctx, family, nodePorts)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.onSearch(family, stats, err)
		if stats.Deleted > 0 {
			klog.FromContext(ctx).V(2).Info("Removed stale UDP flows", "family", family, "flows", stats.Deleted, "duration", stats.Duration)
		}
		if err == nil {
			c.flows.done(family, upTo)
		}
		failures = append(failures, err)
	}
	failures = append(failures, c.deleteUntranslated(ctx))
	return errors.Join(failures...)
}

func (c *FlowCleaner) search(ctx context.Context, family model.Family, nodePorts bool) (stats conntrack.Stats, err error) {
	var local []netip.Prefix
	if nodePorts {
		if local, err = nodeaddr.Local(c.netNS, family); err != nil {
			return stats, fmt.Errorf("find node ports' addresses: %w", err)
		}
	}
	return c.table.DeleteFlows(ctx, family, uint8(model.UDP), func(f conntrack.Flow) bool { return c.flows.stale(f, local) })
}
