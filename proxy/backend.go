// Package proxy is a model.Backend for nftables. It compiles the model, commits the tables to the kernel, and repairs
// them after others changed them. Three types share the work:
//
//   - [Backend] takes Syncs: it applies the changes to the compiler and commits the difference (backend.go). If the
//     kernel's tables are not known to be as committed, it reads them and commits the difference with the wanted tables,
//     or replaces them (reconcile.go).
//   - repairer compares the kernel's tables with the wanted tables when another program has committed (repair.go,
//     watch.go).
//   - affinityReconciler keeps the maps of session affinity free of clients whose endpoint went (affinity.go,
//     affinityreconciler.go).
//
// [Backend.Watch] runs the last two beside the Syncs.
package proxy

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

// Backend writes the model to nftables. It implements model.Backend.
//
// The loop of Syncs calls Sync, which holds mu. The repairer and the affinityReconciler take mu for each of their
// steps. In a step they use the compiler, commit, compare and reconcile, and nothing else of the Backend.
type Backend struct {
	conn *nft.Conn
	// reader is for listings that can be long, so that commits do not wait for them.
	reader *nft.Conn
	hooks  Hooks
	// serviceProxyName is the compiler's Config.ServiceProxyName, which names the tables.
	serviceProxyName string
	// flows takes notes of each Sync, and lists the connections from which lost affinity is restored; nil for none.
	flows *conntrack.Cleaner
	// hookTime is the constant of this name; tests change it.
	hookTime time.Duration
	// refillFrom is the constant of this name; tests change it.
	refillFrom int

	// mu guards the fields below.
	mu       sync.Mutex
	compiler *compiler.Compiler
	state    state
	// generation is the kernel's generation number at which the tables were last known to be as committed, plus one for
	// each own commit since that raised it. commits counts these commits.
	generation, commits uint32

	repairs  *repairer
	affinity *affinityReconciler
}

// Hooks are called on events, for metrics. Each may be nil. They must not call the Backend.
type Hooks struct {
	// OnCommitting is called with true before a transaction is sent to the kernel, and with false after the kernel's
	// answer. In between the kernel carries the transaction out, and undoes all of it if the process ends.
	OnCommitting func(bool)
	// OnCommit is called after each successful commit.
	OnCommit func(nft.CommitStats)
	// OnCompile is called in each Sync with the time that the compiler took.
	OnCompile func(time.Duration)
	// OnExternalChange is called when a check finds that another program changed the tables.
	OnExternalChange func()
	// OnDiverged is called with true each time a repair of the tables fails, and with false once the tables are as wanted
	// again.
	OnDiverged func(bool)
	// OnRepair is called after the tables were repaired: after an external change, or after a failed commit.
	OnRepair func()
	// OnContested is called in each Sync with the addresses that several Service ports claim: addresses that are new or have
	// other claimants than before, and the number of all.
	OnContested func(news []compiler.Conflict, all int)
	// OnApplied is called in each Sync with the compiler that has taken the changes, before their commit. It may limit what
	// the compiler's rules do (Compiler.LimitForwarding).
	OnApplied func(ctx context.Context, c *compiler.Compiler, changes *model.Changes)
	// BeforeRefresh is called every ten seconds, while Syncs may run; then OnRefresh is called as OnApplied is in a Sync.
	BeforeRefresh func()
	OnRefresh     func(ctx context.Context, c *compiler.Compiler)
	// OtherRules is called before the first commit if the tables are not there. It reports whether
	// other rules serve, such as those of kube-proxy's mode iptables. Then Services come in a second
	// commit, when their source ranges are valid.
	OtherRules func(context.Context) bool
}

func call[T any](hook func(T), value T) {
	if hook != nil {
		hook(value)
	}
}

// NewBackend returns a backend that commits through conn, and opens one more connection for reading. The caller closes
// both. The error is compiler.New's, or the connection's.
func NewBackend(conn *nft.Conn, config compiler.Config, hooks Hooks) (*Backend, error) {
	c, err := compiler.New(config)
	if err != nil {
		return nil, err
	}
	reader, err := conn.Another()
	if err != nil {
		return nil, err
	}
	b := &Backend{conn: conn, reader: reader, compiler: c, hooks: hooks, serviceProxyName: config.ServiceProxyName, hookTime: hookTime, refillFrom: refillFrom}
	b.repairs, b.affinity = newRepairer(b), newAffinityReconciler(b)
	return b, nil
}

// Close closes the connection that the backend opened, but not the connection that NewBackend got. No method may run during Close or
// later. The rules stay in the kernel.
func (b *Backend) Close() error { return b.reader.Close() }

// RemoveStaleFlows makes the backend notify c of Syncs. After a Sync that concerns UDP frontends, c searches for stale
// flows; after the first Sync and after a repair, also for connections that began without rules. Call RemoveStaleFlows
// before the first Sync.
func (b *Backend) RemoveStaleFlows(c *conntrack.Cleaner) { b.flows = c }

// Sync compiles the changes and commits them, in one transaction for both IP families.
//
// The first Sync reads the kernel's tables and commits the difference. If they are another program's, it replaces them
// while temporary tables serve.
//
// If a commit fails, the tables are probably not as committed last. For example, another program flushed the ruleset. Sync
// then reads them and commits the difference. If that fails too, it replaces them. If even that fails, Sync returns the
// error. The kernel's tables are then as before, unless the outcome of a commit is unknown. The next Sync includes
// these changes.
//
// Clients of session affinity and UDP flows may have to be removed after the commit. Watch and the conntrack.Cleaner
// remove them, so that no Sync waits.
func (b *Backend) Sync(ctx context.Context, changes *model.Changes) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	logger := klog.FromContext(ctx)
	if b.state == stateNew {
		defer b.restore(ctx)()
	}
	begin := time.Now()
	conflicts := b.compiler.Apply(changes)
	call(b.hooks.OnCompile, time.Since(begin))
	for _, c := range conflicts {
		logger.Info("Several Services claim the same address; only one gets it",
			"address", c.Frontend, "owner", c.Owner.ServicePortName(), "others", portNames(c.Others))
	}
	if b.hooks.OnContested != nil {
		b.hooks.OnContested(conflicts, b.compiler.Contested())
	}
	if b.hooks.OnApplied != nil {
		b.hooks.OnApplied(ctx, b.compiler, changes)
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

func portNames(ids []model.PortID) (names []string) {
	for _, id := range ids {
		names = append(names, id.ServicePortName())
	}
	return names
}

// update commits the changes. If that fails, or the kernel's tables are not known, it reconciles them.
func (b *Backend) update(ctx context.Context, logger klog.Logger) error {
	if b.state == stateApplied {
		err := b.commitWithAffinity(ctx, b.compiler.Transaction())
		if err == nil || notSent(ctx, err) {
			return err
		}
		logger.Info("Reconciling the tables, because a commit failed", "reason", err.Error())
	}
	first := b.state == stateNew
	if err := b.reconcile(ctx, logger); err != nil {
		return err
	}
	switch {
	case !first:
		b.repaired()
	case b.flows != nil:
		b.flows.Gap(b.hasEndpoints)
	}
	return nil
}

// commitWithAffinity commits a transaction together with the changes to affinity maps that follow from it. Packets
// change the affinity maps too, so the kernel may refuse the whole. Then it commits the transaction alone.
func (b *Backend) commitWithAffinity(ctx context.Context, tx nft.Transaction) error {
	changes := b.affinity.changes(ctx)
	err := b.commitWanted(ctx, nft.Transaction{Steps: slices.Concat(tx.Steps, changes.Steps)})
	if refused := (*nft.CommitError)(nil); errors.As(err, &refused) && !changes.Empty() {
		return b.commitWanted(ctx, tx)
	}
	return err
}

// commitWanted commits a transaction after which the kernel holds the wanted tables.
func (b *Backend) commitWanted(ctx context.Context, tx nft.Transaction) error {
	if err := b.commit(ctx, tx); err != nil {
		return err
	}
	b.becomeApplied()
	return nil
}

// commit commits a transaction, unless it is empty. The repairer does not take it for an external change.
func (b *Backend) commit(ctx context.Context, tx nft.Transaction) error {
	if tx.Empty() {
		return nil
	}
	b.repairs.concurrent.note(tx)
	call(b.hooks.OnCommitting, true)
	stats, err := b.conn.Commit(ctx, tx)
	call(b.hooks.OnCommitting, false)
	if err != nil {
		return err
	}
	if !stats.Unchanged {
		b.generation++
		b.commits++
	}
	call(b.hooks.OnCommit, stats)
	return nil
}

// notSent reports whether a commit failed because ctx ended first. Then nothing was sent.
func notSent(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, ctx.Err())
}

// repaired notifies others that the tables were not as wanted, and now are.
func (b *Backend) repaired() {
	if b.flows != nil {
		b.flows.Gap(b.hasEndpoints)
		b.flows.LookAtAll()
	}
	if b.hooks.OnRepair != nil {
		b.hooks.OnRepair()
	}
}

func (b *Backend) hasEndpoints(family model.Family, protocol model.Protocol, addr netip.Addr, port uint16) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	owner := b.compiler.Owner(family, protocol, addr, port)
	return owner != nil && len(owner.Cluster)+len(owner.Local) > 0
}

// EndpointOf returns the Service port that the address which a flow dialed belongs to, or the node port of its number, if
// the flow's server is an endpoint of it. It holds up a Sync for one lookup.
func (b *Backend) EndpointOf(f conntrack.Flow) (id model.PortID, found bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	is := func(e model.Endpoint) bool { return e.AddrPort == f.Server }
	for _, addr := range []netip.Addr{f.Dialed.Addr(), {}} {
		owner := b.compiler.Owner(model.FamilyOf(f.Dialed.Addr()), model.Protocol(f.Protocol), addr, f.Dialed.Port())
		if owner != nil && (slices.ContainsFunc(owner.Cluster, is) || slices.ContainsFunc(owner.Local, is)) {
			return owner.ID, true
		}
	}
	return id, false
}

// Tables returns the wanted rulesets, IPv4 first. They are valid until the next Sync, and must not be modified.
func (b *Backend) Tables() []*nft.Table {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.compiler.Tables()
}

// View calls do with the wanted rulesets, if the kernel has them as far as is known. They do not
// change during the call, because no Sync runs.
func (b *Backend) View(do func(tables []*nft.Table)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == stateApplied {
		do(b.compiler.Tables())
	}
}
