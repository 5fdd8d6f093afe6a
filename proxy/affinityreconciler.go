package proxy

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	// affinityBatch bounds the clients that one transaction changes. A Sync waits for one such transaction at most.
	affinityBatch = 500
	// affinityAttempts bounds the tries of a change of a map whose elements expire or appear concurrently.
	affinityAttempts = 5
	// lateDelay is longer than a packet needs from the rule that chooses an endpoint to the rule that records it.
	lateDelay = time.Second
	// restPerWork is the ratio of rest to work, and maxRest bounds the rest. It keeps maps that a flood fills, and
	// endpoints that come and go, from occupying a processor.
	restPerWork = 4
	maxRest     = 30 * time.Second
)

// affinityReconciler keeps the maps of session affinity, which packets fill: it deletes clients of endpoints that went,
// and restores clients whose map was lost. A Sync commits the steps of changes and kept with its own (affinity.go). run
// does what a Sync had no time for. It takes Backend.mu for one transaction at a time, never for a listing.
type affinityReconciler struct {
	backend *Backend
	// lock is Backend.mu.
	lock measuredLock
	// conn reads the maps. It is open while run runs.
	conn *nft.Conn
	// wake is signalled by Syncs.
	wake wakeup
	// copyTime is affinityCopyTime; tests change it.
	copyTime time.Duration
	// restore says that clients were lost, which are to be restored from conntrack. Backend.mu guards it.
	restore bool
	// late holds the maps to read again. A packet that was under way when an endpoint went adds its client after the first
	// look; and reading may have failed.
	late map[mapID]lateLook
	// retry gives the waits after failures.
	retry *backoff.ExponentialBackOff
}

// mapID identifies a map in all states of the model.
type mapID struct {
	port model.PortID
	name string
}

func idOf(m compiler.AffinityMap) mapID { return mapID{m.Port, m.Set.Name} }

// lateLook is a map to read again, as it was wanted at the first look, and the time to do so.
type lateLook struct {
	affinityMap compiler.AffinityMap
	due         time.Time
}

func newAffinityReconciler(b *Backend) *affinityReconciler {
	return &affinityReconciler{
		backend: b, lock: measuredLock{mu: &b.mu}, wake: newWakeup(),
		copyTime: affinityCopyTime, late: map[mapID]lateLook{}, retry: newBackOff(lateDelay),
	}
}

func (r *affinityReconciler) run(ctx context.Context) (err error) {
	if r.conn, err = r.backend.conn.Another(); err != nil {
		return err
	}
	defer r.conn.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-time.After(r.untilDue()):
		}
		sleep(ctx, r.runOnce(ctx))
	}
}

// runOnce restores and deletes clients, and returns how long to rest afterwards. Waits for Syncs are no work.
func (r *affinityReconciler) runOnce(ctx context.Context) (rest time.Duration) {
	logger := klog.FromContext(ctx)
	work := r.lock.work(func() {
		if err := r.restoreFromConntrack(ctx); err != nil && ctx.Err() == nil {
			logger.Error(err, "Cannot restore session affinity from conntrack; clients of lost maps may get another endpoint")
		}
		failed, err := r.deleteStale(ctx)
		if err == nil || ctx.Err() != nil {
			r.retry.Reset()
			return
		}
		wait := r.retry.NextBackOff()
		for _, m := range failed {
			r.late[idOf(m)] = lateLook{m, time.Now().Add(wait)}
		}
		logger.Error(err, "Cannot delete clients of endpoints that went from the maps of session affinity; trying again",
			"in", wait)
	})
	return min(restPerWork*work, maxRest)
}

func (r *affinityReconciler) untilDue() time.Duration {
	wait := time.Hour
	for _, look := range r.late {
		wait = min(wait, time.Until(look.due))
	}
	return wait
}

// deleteStale deletes clients from maps that lost endpoints: at once, and again a moment later.
func (r *affinityReconciler) deleteStale(ctx context.Context) (failed []compiler.AffinityMap, _ error) {
	r.lock.Lock()
	stale := r.backend.compiler.Affinity().Stale()
	r.lock.Unlock()
	before := r.late
	r.late = map[mapID]lateLook{} // without maps that are not stale any more
	var failures []error
	for _, m := range stale {
		look, again := before[idOf(m)]
		again = again && look.affinityMap.SameEndpoints(m)
		if again && time.Now().Before(look.due) {
			r.late[idOf(m)] = look
			continue
		}
		err := r.change(ctx, m, nft.DeleteElements, func(held []nft.Element) []nft.Element {
			return slices.DeleteFunc(held, m.Serves)
		})
		switch {
		case err != nil:
			failed, failures = append(failed, m), append(failures, err)
		case again:
			r.lock.Lock()
			r.backend.compiler.Affinity().Cleaned(m)
			r.lock.Unlock()
		default:
			r.late[idOf(m)] = lateLook{m, time.Now().Add(lateDelay)}
		}
	}
	return failed, errors.Join(failures...)
}

// change reads a map, and adds or deletes the elements that choose returns. Meanwhile packets add elements, and others
// expire. If the kernel then refuses a transaction (EEXIST or EBUSY), change starts again.
func (r *affinityReconciler) change(ctx context.Context, m compiler.AffinityMap, op nft.StepOp, choose func(held []nft.Element) []nft.Element) error {
	for attempt := 1; ; attempt++ {
		held, err := readAffinity(ctx, r.conn, m)
		if errors.Is(err, unix.ENOENT) {
			return nil // the map is gone
		}
		if err != nil {
			return err
		}
		err = r.commit(ctx, m, op, choose(held))
		if err == nil || !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) || attempt == affinityAttempts {
			return err
		}
	}
}

// commit changes the elements in many small transactions. A refused transaction does not stop the others. If the kernel
// refuses to delete, because an element is gone already, it deletes each half by itself.
func (r *affinityReconciler) commit(ctx context.Context, m compiler.AffinityMap, op nft.StepOp, elements []nft.Element) error {
	if len(elements) <= affinityBatch {
		err := r.commitOnce(ctx, m, op, slices.Clone(elements))
		if op != nft.DeleteElements || !errors.Is(err, unix.ENOENT) {
			return err
		}
		if len(elements) == 1 {
			return nil
		}
	}
	half := len(elements) / 2
	return errors.Join(r.commit(ctx, m, op, elements[:half]), r.commit(ctx, m, op, elements[half:]))
}

// commitOnce commits the elements in one transaction, without elements that a Sync has made wrong.
func (r *affinityReconciler) commitOnce(ctx context.Context, m compiler.AffinityMap, op nft.StepOp, elements []nft.Element) error {
	r.lock.Lock()
	defer r.lock.Unlock()
	now, wanted := r.backend.compiler.Affinity().Current(m)
	if !wanted {
		return nil
	}
	elements = slices.DeleteFunc(elements, func(e nft.Element) bool { return now.Serves(e) != (op == nft.AddElements) })
	return r.backend.commit(ctx, changeClients(op, m, elements)) // which does nothing without any
}
