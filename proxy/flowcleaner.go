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
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodeaddr"
	"k8s.io/klog/v2"
)

const (
	// firstFlowRetry is how long Run waits after a search that failed, and after each that
	// follows twice as long, up to lastFlowRetry.
	firstFlowRetry = 100 * time.Millisecond
	lastFlowRetry  = 30 * time.Second
)

// FlowCleaner removes entries from the connection tracking table: stale UDP flows, so that the next packet of their
// client goes to an endpoint that serves, and connections that began while there were no rules. Sync only notes the
// frontends to look at. So a table that is large, or cannot be listed, delays no change of the rules. The notes are
// merged, and never exceed the number of UDP addresses of all Services.
type FlowCleaner struct {
	netNS    int
	table    *conntrack.Conn
	onSearch func(model.Family, conntrack.Stats, error)
	flows    *udpFlows
	serves   frontendServes
	// gaps counts how often the tables were made anew: connections may have begun before without rules. gapsSearched is
	// the value up to which a search has seen all.
	gaps, gapsSearched atomic.Uint32
	// wake has one place: many Syncs are one search.
	wake chan struct{}
	// searching keeps searches apart.
	searching sync.Mutex
}

// NewFlowCleaner returns a FlowCleaner for the network namespace of the file descriptor, which must stay open as long
// as the FlowCleaner is used, or, with 0, for the current one. It begins to work when Backend.RemoveStaleFlows was
// called with it and Run runs. onSearch, which may be nil, is called after each search, with its error if it failed.
func NewFlowCleaner(netNS int, onSearch func(model.Family, conntrack.Stats, error)) (*FlowCleaner, error) {
	table, err := conntrack.Dial(netNS)
	if err != nil {
		return nil, err
	}
	if onSearch == nil {
		onSearch = func(model.Family, conntrack.Stats, error) {}
	}
	return &FlowCleaner{netNS: netNS, table: table, onSearch: onSearch, flows: newUDPFlows(), wake: make(chan struct{}, 1)}, nil
}

// note records the changes that a Sync has committed. The changes of one that failed come again with the next
// (model.Backend).
func (c *FlowCleaner) note(rules *compiler.Compiler, changes *model.Changes) {
	if c.flows.apply(rules, changes) || c.gaps.Load() != c.gapsSearched.Load() {
		c.signal()
	}
}

// repaired notes all frontends: packets may have passed untranslated before the tables were repaired.
func (c *FlowCleaner) repaired() {
	c.flows.lookAtAll()
	c.begun()
	c.signal()
}

// begun makes the next search look for untranslated connections: until now there may have been no rules.
func (c *FlowCleaner) begun() { c.gaps.Add(1) }

func (c *FlowCleaner) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run searches whenever a Sync left something to look at, until ctx ends. What could not be
// removed is tried again with back-off; new changes do not wait for that. After a search it
// rests for as long as the search took. The first failure is logged, and the end of it.
func (c *FlowCleaner) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	retry := time.NewTimer(0)
	retry.Stop()
	defer retry.Stop()
	var wait time.Duration
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-retry.C:
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
			wait = min(max(2*wait, firstFlowRetry), lastFlowRetry)
			retry.Reset(wait)
		case wait > 0:
			logger.Info("Stale UDP flows can be removed again")
			wait = 0
			retry.Stop()
		}
		rest(ctx, time.Since(begin))
	}
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Clean searches now for the stale flows that Syncs before the call have left, in one search
// of the table for each IP family in which there is a reason to. It returns an error when some
// could not be removed; the next Clean tries again.
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
			klog.FromContext(ctx).V(2).Info("Removed UDP flows to endpoints that do not serve any more", "family", family, "flows", stats.Deleted, "duration", stats.Duration)
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
