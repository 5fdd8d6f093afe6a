package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

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
	// generation is the kernel's generation number at which the tables were last known to be as committed, plus one for
	// each commit of our own since. commits counts our own commits.
	generation, commits uint32
	// failures is how many comparisons failed in a row.
	failures int
	// meanwhile records what is committed while a comparison with the kernel runs; nil while none does.
	meanwhile *meanwhile
	// listener receives notices of other programs' commits; nil while Watch does not run.
	listener *nft.Listener
	// checkInterval is CheckInterval; tests change it.
	checkInterval time.Duration
	// noticed has room for one. It is filled when somebody else may have committed, and starts a check.
	noticed chan struct{}
	// conntrack lists the connections from which lost affinity is restored; nil for none.
	conntrack *conntrack.Conn
	// flows gets the changes of each Sync; nil for none.
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

// Close closes the connections that the backend opened; not the one that NewBackend was given. No method may run any
// more. The rules stay.
func (b *Backend) Close() error { return b.reader.Close() }

// RemoveStaleFlows has c remove flows. After each Sync, c searches for stale UDP flows, and after each repair for
// connections that began without rules. RemoveStaleFlows must be called before the first Sync.
func (b *Backend) RemoveStaleFlows(c *FlowCleaner) {
	b.flows, b.conntrack = c, c.table
	c.serves = b.frontendServes
}

// Sync compiles the changes and commits them, in one transaction for both IP families.
//
// The first Sync reads the kernel's tables and commits the difference. If they are another program's, it replaces them,
// and stand-ins serve meanwhile.
//
// If the kernel refuses a transaction, the tables are probably not as committed last: somebody flushed the ruleset,
// say. Sync then reads them and commits the difference or, if that is refused too, replaces them. If the kernel refuses
// even that, Sync returns the error. The kernel's tables are then as before, and the next Sync includes these changes.
//
// Clients of session affinity and UDP flows may have to be removed after the commit. Watch and the FlowCleaner do that,
// so that no Sync waits for it.
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

// update commits what changed or, if the kernel refuses that or its tables are not known, reconciles them.
func (b *Backend) update(ctx context.Context, logger klog.Logger) error {
	if b.state.kind == stateApplied {
		err := b.commitChanges(ctx)
		if err == nil || notSent(ctx, err) {
			return err
		}
		logger.Info("Reconciling the tables, because the kernel refused a change to them", "reason", err.Error())
	}
	again := b.committed()
	if err := b.reconcile(ctx, logger); err != nil {
		return err
	}
	if again {
		b.afterRepair()
	} else if b.flows != nil {
		b.flows.begun()
	}
	return nil
}

// Tables returns the rulesets as they are wanted now. They are valid until the next Sync.
func (b *Backend) Tables() []*nft.Table {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.compiler.Tables()
}

func logConflict(logger klog.Logger, c compiler.Conflict) {
	logger.Info("Several Services claim the same address; only one gets it", "address", c.Frontend, "owner", c.Owner.ServicePortName(), "others", names(c.Others))
}

func names(ids []model.PortID) []string {
	var out []string
	for _, id := range ids {
		out = append(out, id.ServicePortName())
	}
	return out
}
