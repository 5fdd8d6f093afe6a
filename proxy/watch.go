package proxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

const (
	// CheckInterval is the interval at which Watch asks for the kernel's generation number, which takes microseconds. To
	// subscribe to commits would cost everybody who commits on this machine: see nft.Monitor.
	CheckInterval = 50 * time.Millisecond
	// restPerComparison is the ratio of rest to comparisons, and maxComparisonRest bounds the rest.
	restPerComparison = 20
	maxComparisonRest = time.Minute
	// firstRetryDelay is the first wait after a failure, and maxRetryDelay bounds the later waits.
	firstRetryDelay = time.Second
	maxRetryDelay   = 30 * time.Second
)

// newBackOff returns waits that begin with first and double up to maxRetryDelay.
func newBackOff(first time.Duration) *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{InitialInterval: first, Multiplier: 2, MaxInterval: maxRetryDelay}
}

// Watch checks the tables whenever another program has committed, and repairs them, until ctx ends. It adds a missing table
// at once. To find changes inside the tables, it compares both with the wanted tables, for at most a twentieth of the time
// if a comparison takes less than three seconds. It also runs the reconciler of session affinity.
func (b *Backend) Watch(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { retry(ctx, "reconcile session affinity", b.affinity.run) })
	group.Go(func() { retry(ctx, "check the tables", b.repairs.run) })
	group.Go(func() { retry(ctx, "refresh the tables", b.refresh) })
	group.Wait()
}

// retry calls do until ctx ends, with back-off when it fails.
func retry(ctx context.Context, what string, do func(context.Context) error) {
	for waits := newBackOff(firstRetryDelay); ctx.Err() == nil; {
		begin := time.Now()
		err := do(ctx)
		if time.Since(begin) > maxRetryDelay {
			waits.Reset() // do worked for a while before it failed
		}
		if err != nil && ctx.Err() == nil {
			wait := waits.NextBackOff()
			klog.FromContext(ctx).Error(err, "Cannot "+what+"; trying again", "in", wait)
			sleep(ctx, wait)
		}
	}
}

// run polls the generation number until ctx ends, and checks the tables when the number has changed. It returns an error if
// it cannot poll. It polls over a connection of its own, so that no Sync waits.
func (r *repairer) run(ctx context.Context) error {
	conn, err := r.backend.conn.Another()
	if err != nil {
		return err
	}
	defer conn.Close()
	tick := time.NewTicker(r.interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		generation, err := conn.Generation(ctx)
		if err != nil {
			return err
		}
		if generation != r.checked || r.unfinished && !time.Now().Before(r.nextComparison) {
			r.checked = generation
			r.next(ctx, conn)
		}
	}
}

// next makes the next check, and decides when the check after it may compare the tables. It sleeps if the check fails.
func (r *repairer) next(ctx context.Context, conn *nft.Conn) {
	logger := klog.FromContext(ctx)
	compare := !time.Now().Before(r.nextComparison)
	result, err := r.check(ctx, conn, compare)
	r.unfinished = result.unfinished || err != nil
	r.rest(restAfter(result.compared))
	if result.repaired {
		if wait := r.conflict.repaired(time.Now()); wait > 0 {
			r.rest(wait)
			logger.Error(nil, "Another program keeps changing the proxy's tables; comparing less often. Does a second proxy run on this node?",
				"next", wait, "remedy", findChanger)
		}
	}
	switch {
	case err == nil || ctx.Err() != nil:
		if compare {
			r.retry.Reset()
		}
	case errors.Is(err, nft.ErrGenerationMoved):
		wait := r.retry.NextBackOff()
		logger.Info("Cannot compare the tables, because they change meanwhile; trying again", "in", wait)
		r.rest(wait) // and notice missing tables all the same
	default:
		wait := r.retry.NextBackOff()
		logger.Error(err, "Cannot check or repair the tables; trying again", "in", wait)
		sleep(ctx, wait)
		r.checked = 0 // no ruleset has this number
	}
}

// findChanger says how to find out who changes the tables. The kernel does not tell afterwards.
const findChanger = "ruledump watch names the program at its next change"

func restAfter(compared time.Duration) time.Duration {
	return min(restPerComparison*compared, maxComparisonRest)
}

// rest compares no tables for a while.
func (r *repairer) rest(wait time.Duration) {
	if until := time.Now().Add(wait); until.After(r.nextComparison) {
		r.nextComparison = until
	}
}

const (
	// conflictGap is the longest time between two repairs in a row.
	conflictGap = 10 * time.Second
	// conflictRepairs is the number of repairs in a row that can be chance. More are a conflict.
	conflictRepairs = 5
)

// repairConflict counts repairs that another program undoes again and again, such as a second proxy with another
// configuration. Without repairConflict, each of the two would repair the tables for ever, as fast as it can.
type repairConflict struct {
	repairs int
	last    time.Time
	// wait is the last wait, and waits gives the next waits.
	wait  time.Duration
	waits *backoff.ExponentialBackOff
}

func newRepairConflict() repairConflict { return repairConflict{waits: newBackOff(firstRetryDelay)} }

// repaired notes a repair, and returns how long not to compare the tables. Missing tables are added nevertheless.
func (c *repairConflict) repaired(now time.Time) (wait time.Duration) {
	if now.Sub(c.last) > conflictGap+c.wait {
		*c = newRepairConflict()
	}
	c.repairs, c.last = c.repairs+1, now
	if c.repairs > conflictRepairs {
		c.wait = c.waits.NextBackOff()
	}
	return c.wait
}

// wakeup wakes one goroutine that receives from it. It has room for one value, so all signals that come while the
// goroutine works become one.
type wakeup chan struct{}

func newWakeup() wakeup { return make(wakeup, 1) }

func (w wakeup) signal() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// measuredLock locks mu, and measures how long it waits for it. One goroutine at a time may use it.
type measuredLock struct {
	mu     *sync.Mutex
	waited time.Duration
}

// Lock implements sync.Locker.
func (l *measuredLock) Lock() {
	begin := time.Now()
	l.mu.Lock()
	l.waited += time.Since(begin)
}

// Unlock implements sync.Locker.
func (l *measuredLock) Unlock() { l.mu.Unlock() }

// work returns how long do takes, without its waits for the lock.
func (l *measuredLock) work(do func()) time.Duration {
	begin, before := time.Now(), l.waited
	do()
	return time.Since(begin) - (l.waited - before)
}

// refreshInterval is the interval at which the rules are compiled again for what changes without a Sync.
const refreshInterval = 10 * time.Second

// refresh commits what changes with time, or with the node.
func (b *Backend) refresh(ctx context.Context) error {
	for sleep(ctx, refreshInterval); ctx.Err() == nil; sleep(ctx, refreshInterval) {
		if err := b.refreshOnce(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *Backend) refreshOnce(ctx context.Context) error {
	if b.hooks.BeforeRefresh != nil {
		b.hooks.BeforeRefresh()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != stateApplied {
		return nil // a Sync or a repair comes
	}
	b.compiler.Apply(&model.Changes{})
	if b.hooks.OnRefresh != nil {
		b.hooks.OnRefresh(ctx, b.compiler)
	}
	return b.update(ctx, klog.FromContext(ctx))
}
