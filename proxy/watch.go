package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
)

const (
	// CheckInterval is how often Watch asks for the kernel's generation number, in case a notice was lost or the kernel
	// gives none. Asking takes microseconds.
	CheckInterval = time.Second
	// restPerComparison is the ratio of rest to comparisons. maxComparisonRest bounds the rest. It counts for tables of
	// which a comparison takes longer than three seconds.
	restPerComparison = 20
	maxComparisonRest = time.Minute
	// maxRetryDelay bounds the delay between tries after failures. Each delay is twice as long as the one before.
	maxRetryDelay = 30 * time.Second
)

// Watch checks the tables whenever somebody else commits, and repairs them, until ctx ends. It adds a missing table at
// once. To find changes inside the tables, it compares both with the wanted ones, for at most a twentieth of the time
// if a comparison takes less than three seconds. It also runs the reconciler of session affinity.
func (b *Backend) Watch(ctx context.Context) {
	logger := klog.FromContext(ctx)
	group, ctx := errgroup.WithContext(ctx)
	again := func(what string, do func(context.Context) error) {
		group.Go(func() error {
			for wait := CheckInterval; ctx.Err() == nil; wait = min(2*wait, maxRetryDelay) {
				begin := time.Now()
				err := do(ctx)
				if time.Since(begin) > maxRetryDelay {
					wait = CheckInterval // do worked for a while before it failed
				}
				if err != nil && ctx.Err() == nil {
					logger.Error(err, "Cannot "+what+"; trying again", "in", wait)
					sleep(ctx, wait)
				}
			}
			return nil
		})
	}
	again("reconcile session affinity", b.affinity.run)
	again("listen for other programs' commits", b.listen)
	again("check the tables", b.checkAgain)
	_ = group.Wait()
}

// listen starts a check whenever somebody else commits.
func (b *Backend) listen(ctx context.Context) error {
	listener, err := b.conn.Monitor(ctx, "")
	if err != nil {
		return err
	}
	defer listener.Close()
	b.setListener(listener)
	defer b.setListener(nil)
	for {
		heard, err := listener.Next(ctx)
		if err != nil {
			return err
		}
		b.foreign.Store(&heard)
		b.noticed.signal()
	}
}

func (b *Backend) setListener(l *nft.Monitor) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listener = l
}

// checkAgain checks the tables until ctx ends. It returns an error if it cannot open a connection.
func (b *Backend) checkAgain(ctx context.Context) error {
	conn, err := b.conn.Another()
	if err != nil {
		return err
	}
	defer conn.Close()
	tick := time.NewTicker(b.checkInterval)
	defer tick.Stop()
	checks := checks{backend: b, conn: conn, retry: CheckInterval}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.noticed:
		case <-tick.C:
		}
		checks.next(ctx)
	}
}

// checks is a series of checks.
type checks struct {
	backend *Backend
	conn    *nft.Conn
	// nextComparison is the time from which on the tables may be compared.
	nextComparison time.Time
	contest        contest
	// retry is how long to wait after the next failure.
	retry time.Duration
}

// next makes the next check. It sleeps if the check fails.
func (c *checks) next(ctx context.Context) {
	logger := klog.FromContext(ctx)
	compare := !time.Now().Before(c.nextComparison)
	compared, repaired, err := c.backend.check(ctx, c.conn, compare)
	c.rest(restAfter(compared))
	if wait := c.contest.note(repaired, time.Now()); wait > 0 {
		c.rest(wait)
		logger.Error(nil, "Another program keeps changing the proxy's tables; comparing less often. Does a second proxy run on this node?",
			"lastCommit", c.backend.lastForeignCommit(), "next", wait)
	}
	if err != nil && ctx.Err() == nil {
		if errors.Is(err, nft.ErrGenerationMoved) {
			// Missing tables are noticed meanwhile.
			logger.Info("Cannot compare the tables, because they change meanwhile; trying again", "in", c.retry)
			c.rest(c.retry)
		} else {
			logger.Error(err, "Cannot check or repair the tables; trying again", "in", c.retry)
			sleep(ctx, c.retry)
		}
		c.retry = min(2*c.retry, maxRetryDelay)
	} else if compare {
		c.retry = CheckInterval
	}
}

// restAfter returns how long to rest after a comparison that took so long.
func restAfter(compared time.Duration) time.Duration {
	return min(restPerComparison*compared, maxComparisonRest)
}

// rest compares no tables for a while.
func (c *checks) rest(wait time.Duration) {
	if until := time.Now().Add(wait); until.After(c.nextComparison) {
		c.nextComparison = until
	}
}
