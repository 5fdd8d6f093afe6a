package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-logr/logr"
	"github.com/nftproxy/nftproxy/internal/nodeaddr"
	"github.com/nftproxy/nftproxy/model"
)

// Cleaner deletes useless entries of the connection tracking table: stale UDP flows, and connections that began while
// there were no rules. Note, Gone, Gap and LookAtAll only record, and Run searches, so a large table delays no caller.
// The records exceed the number of UDP frontends of all Services by at most 100,000.
type Cleaner struct {
	table   *Conn
	options CleanerOptions
	flows   *udpFlows
	// wake starts a search.
	wake chan struct{}
	// searching is held during a search.
	searching sync.Mutex
	// mu guards gap: the last gap whose connections are not searched for yet; nil for none.
	mu  sync.Mutex
	gap *HasEndpoints
}

// CleanerOptions configures a Cleaner.
type CleanerOptions struct {
	// NetNS is an open file descriptor of the network namespace; 0 means the current one.
	NetNS int
	// Logger takes the failures of Run. The zero value logs nothing.
	Logger logr.Logger
	// OnSearch, if set, is called after each search for stale UDP flows, with its error if it failed.
	OnSearch func(model.Family, Stats, error)
}

// Rules has the frontends of Services for a Cleaner. *compiler.Compiler implements it.
type Rules interface {
	// Owner returns the Service port that serves an address and port, or a node port if addr is the zero value, or nil.
	Owner(family model.Family, protocol model.Protocol, addr netip.Addr, port uint16) *model.ServicePort
	// EachFrontend calls do with each address and port that a Service port claims; addr is the zero value for a node port.
	EachFrontend(p *model.ServicePort, do func(addr netip.Addr, port uint16))
	// NodePortPrefixes returns the prefixes on which node ports answer.
	NodePortPrefixes(family model.Family) []netip.Prefix
}

// HasEndpoints reports whether a frontend, or a node port if addr is the zero value, has endpoints. The Cleaner calls
// it concurrently.
type HasEndpoints func(family model.Family, protocol model.Protocol, addr netip.Addr, port uint16) bool

// NewCleaner returns a Cleaner. Errors come from Dial.
func NewCleaner(options CleanerOptions) (*Cleaner, error) {
	table, err := Dial(options.NetNS)
	if err != nil {
		return nil, err
	}
	return &Cleaner{table: table, options: options, flows: newUDPFlows(), wake: make(chan struct{}, 1)}, nil
}

// Conn returns the connection of the Cleaner, for shared use.
func (c *Cleaner) Conn() *Conn { return c.table }

// Note records committed changes. It must follow the commit: the old rules could create a removed flow again.
func (c *Cleaner) Note(rules Rules, changes *model.Changes) {
	if c.flows.apply(rules, changes) || c.openGap() != nil {
		c.signal()
	}
}

// Gone records a UDP frontend of an earlier process's rules that no Service has. A zero address stands for a node port.
// Call Note afterwards.
func (c *Cleaner) Gone(family model.Family, frontend netip.AddrPort) {
	c.flows.mu.Lock()
	defer c.flows.mu.Unlock()
	c.flows.gone(udpFrontend{family, frontend})
}

// Gap records that there may have been no rules until now. The next search finds connections that began meanwhile and
// dial a frontend with endpoints. Call Note or LookAtAll afterwards.
func (c *Cleaner) Gap(hasEndpoints HasEndpoints) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gap = &hasEndpoints
}

// LookAtAll makes the next search cover all UDP frontends.
func (c *Cleaner) LookAtAll() {
	c.flows.lookAtAll()
	c.signal()
}

func (c *Cleaner) signal() {
	select {
	case c.wake <- struct{}{}:
	default: // a search is due already
	}
}

// Run searches after each record, until ctx ends. It tries again 100 ms after a failure, then after twice as long each
// time, up to 30 s; new records do not wait. After a search it rests for as long as the search took.
func (c *Cleaner) Run(ctx context.Context) {
	waits := backoff.ExponentialBackOff{InitialInterval: 100 * time.Millisecond, Multiplier: 2, MaxInterval: 30 * time.Second}
	var retry <-chan time.Time // nil unless the last search failed
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
			if retry == nil {
				c.options.Logger.Error(err, "Cannot remove all stale UDP flows, trying again; this is logged once")
			}
			retry = time.After(waits.NextBackOff())
		case retry != nil:
			c.options.Logger.Info("Stale UDP flows can be removed again")
			retry = nil
			waits.Reset()
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Since(begin)):
		}
	}
}

// Clean searches now, at most once for each IP family and protocol. If a search or a
// deletion fails, the next Clean tries again.
func (c *Cleaner) Clean(ctx context.Context) error {
	c.searching.Lock()
	defer c.searching.Unlock()
	var failures []error
	for _, family := range model.Families {
		some, nodePorts, upTo := c.flows.begin(family)
		if !some {
			continue
		}
		stats, err := c.deleteStale(ctx, family, nodePorts)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if c.options.OnSearch != nil {
			c.options.OnSearch(family, stats, err)
		}
		if err == nil {
			c.flows.done(family, upTo)
		}
		failures = append(failures, err)
	}
	return errors.Join(append(failures, c.deleteUntranslated(ctx))...)
}

func (c *Cleaner) deleteStale(ctx context.Context, family model.Family, nodePorts bool) (stats Stats, err error) {
	var local []netip.Prefix
	if nodePorts {
		if local, err = nodeaddr.Local(c.options.NetNS, family); err != nil {
			return stats, fmt.Errorf("find node ports' addresses: %w", err)
		}
	}
	stats, err = c.table.DeleteFlows(ctx, family, uint8(model.UDP), func(f Flow) bool { return c.flows.stale(f, local) })
	if stats.Deleted > 0 {
		c.options.Logger.V(2).Info("Removed stale UDP flows",
			"family", family, "flows", stats.Deleted, "duration", stats.Duration)
	}
	return stats, err
}

// A connection that begins without rules is never translated: the decision about its first packet holds for all
// packets, retransmitted SYNs included. So after a gap, unanswered entries of these protocols are deleted if they dial
// a frontend with endpoints. In kube-proxy they stay until their timeout (120 s).
var connectionProtocols = []model.Protocol{model.TCP, model.SCTP}

// deleteUntranslated deletes untranslated connections to frontends with endpoints, if there was a gap since the last
// successful search.
func (c *Cleaner) deleteUntranslated(ctx context.Context) error {
	gap := c.openGap()
	if gap == nil {
		return nil
	}
	var failures []error
	for _, family := range model.Families {
		local, err := nodeaddr.Local(c.options.NetNS, family)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		for _, protocol := range connectionProtocols {
			stats, err := c.table.DeleteUntranslated(ctx, family, uint8(protocol), func(f Flow) bool {
				addr, port := f.Dialed.Addr(), f.Dialed.Port()
				return !f.Translated() && ((*gap)(family, protocol, addr, port) ||
					c.flows.answersNodePorts(addr, local) && (*gap)(family, protocol, netip.Addr{}, port))
			})
			if stats.Deleted > 0 {
				c.options.Logger.V(2).Info("Removed connections that began without rules",
					"family", family, "protocol", protocol, "connections", stats.Deleted, "duration", stats.Duration)
			}
			failures = append(failures, err)
		}
	}
	if err := errors.Join(failures...); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gap == gap { // no other gap came during the search
		c.gap = nil
	}
	return nil
}

func (c *Cleaner) openGap() *HasEndpoints {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gap
}
