package proxy

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
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
	// serviceProxyName is that of the compiler's Config, which names the tables.
	serviceProxyName string

	// checking is held during a check.
	checking sync.Mutex
	// mu is held during a Sync, and during each step of a check and of the affinity reconciler. It guards the fields
	// below.
	mu       sync.Mutex
	compiler *compiler.Compiler
	state    state
	// generation is the kernel's generation number at which the tables were last known to be as committed, plus one for
	// each own commit since that raised it. commits counts these commits.
	generation, commits uint32
	// failures is how many comparisons failed in a row.
	failures int
	// meanwhile records the own commits while a comparison with the kernel runs; nil while none does.
	meanwhile *meanwhile
	// listener receives notices of other programs' commits; nil while Watch does not run.
	listener *nft.Monitor
	// checkInterval is CheckInterval, and copyTime is affinityCopyTime; tests change them.
	checkInterval, copyTime time.Duration
	// noticed starts a check, because somebody else may have committed.
	noticed wakeup
	// foreign is the last commit by somebody else that was heard of; nil for none.
	foreign atomic.Pointer[nft.Event]
	// conntrack lists the connections from which lost affinity is restored; nil for none.
	conntrack *conntrack.Conn
	// flows takes notes of each Sync; nil for none.
	flows    *conntrack.Cleaner
	affinity *affinityReconciler
}

// NewBackend returns a backend that commits through conn, and opens one more connection for reading. The caller closes
// both. The error is that of compiler.New, or of the connection.
func NewBackend(conn *nft.Conn, config compiler.Config, hooks Hooks) (*Backend, error) {
	c, err := compiler.New(config)
	if err != nil {
		return nil, err
	}
	reader, err := conn.Another()
	if err != nil {
		return nil, err
	}
	b := &Backend{conn: conn, reader: reader, compiler: c, hooks: hooks, serviceProxyName: config.ServiceProxyName, checkInterval: CheckInterval, copyTime: affinityCopyTime, noticed: newWakeup()}
	b.affinity = newAffinityReconciler(b)
	return b, nil
}

// Close closes the connection that the backend opened, but not that of NewBackend. No method may run during Close or
// later. The rules stay in the kernel.
func (b *Backend) Close() error { return b.reader.Close() }

// RemoveStaleFlows makes the backend tell c about Syncs. After a Sync that concerns UDP frontends, c searches for stale
// flows; after the first Sync and after a repair, also for connections that began without rules. Call RemoveStaleFlows
// before the first Sync.
func (b *Backend) RemoveStaleFlows(c *conntrack.Cleaner) { b.flows, b.conntrack = c, c.Conn() }

// hasEndpoints is a conntrack.HasEndpoints.
func (b *Backend) hasEndpoints(family model.Family, protocol model.Protocol, addr netip.Addr, port uint16) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	owner := b.compiler.Owner(family, protocol, addr, port)
	return owner != nil && len(owner.Cluster)+len(owner.Local) > 0
}

// Sync compiles the changes and commits them, in one transaction for both IP families.
//
// The first Sync reads the kernel's tables and commits the difference. If they are another program's, it replaces them,
// and stand-ins serve meanwhile.
//
// If a commit fails, the tables are probably not as committed last. For example, somebody flushed the ruleset. Sync
// then reads them and commits the difference. If that fails too, it replaces them. If even that fails, Sync returns the
// error. The kernel's tables are then as before, unless the outcome of a commit is unknown. The next Sync includes
// these changes.
//
// Clients of session affinity and UDP flows may have to be removed after the commit. Watch and the conntrack.Cleaner do that,
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
		b.flows.Note(b.compiler, changes)
	}
	b.affinity.wake.signal()
	return nil
}

// update commits the changes. If that fails, or the kernel's tables are not known, it reconciles them.
func (b *Backend) update(ctx context.Context, logger klog.Logger) error {
	if b.state.kind == stateApplied {
		err := b.commitWithAffinity(ctx, b.compiler.Transaction())
		if err == nil || notSent(ctx, err) {
			return err
		}
		logger.Info("Reconciling the tables, because a commit failed", "reason", err.Error())
	}
	again := b.committed()
	if err := b.reconcile(ctx, logger); err != nil {
		return err
	}
	if again {
		b.afterRepair()
	} else if b.flows != nil {
		b.flows.Gap(b.hasEndpoints)
	}
	return nil
}

// Tables returns the wanted rulesets, IPv4 first. They are valid until the next Sync, and must not be modified.
func (b *Backend) Tables() []*nft.Table {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.compiler.Tables()
}

// View calls do with the wanted rulesets, if the kernel has them as far as is known. They do not change during the call,
// because no Sync runs.
func (b *Backend) View(do func(tables []*nft.Table)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.kind == stateApplied {
		do(b.compiler.Tables())
	}
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
