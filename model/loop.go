package model

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-logr/logr"
)

// LoopOptions configures a Loop. The zero value syncs as soon as something changes.
type LoopOptions struct {
	// MinSyncPeriod is the least time from the start of one Sync to the start of the next. Changes during a Sync become
	// one next Sync anyway.
	MinSyncPeriod time.Duration
	// Logger takes errors of the Backend. The zero value logs nothing.
	Logger logr.Logger
	// OnQueued, if set, is called when there are changes to sync.
	OnQueued func()
	// OnSync, if set, is called after each Sync, except one that the end of Run's context interrupts.
	OnSync func(SyncResult)
}

// SyncResult is the result of one call of Backend.Sync.
type SyncResult struct {
	// Changes are the argument of Sync. They may change after the hook returns.
	Changes *Changes
	// Triggers are the times of the events that led to Changes, as Feed.Take returns them, at most MaxTriggers. After
	// an error the next Sync has them again.
	Triggers []time.Time
	// Started is the time of the call of Sync.
	Started time.Time
	// Duration is the time that Sync took.
	Duration time.Duration
	// Err is the error of Sync; nil if it succeeded.
	Err error
	// RetryIn is the time until the Loop tries again after an error, unless new changes bring that forward.
	RetryIn time.Duration
}

// MaxTriggers bounds the trigger times that a Loop keeps until a Sync succeeds: the oldest ones.
const MaxTriggers = 10_000

// maxPending bounds the changed ports that are kept one by one while Syncs fail. Beyond it a full state replaces them,
// because ports that came and went would be kept for ever.
const maxPending = 10_000

// Feed is a source of changes: a tracker.Tracker, a tracker.View, or a nodelocal.Client.
type Feed interface {
	// Dirty returns a channel that receives after events for which Take may have news. Many events
	// make one receive. The channel is never closed, and may have one reader only.
	Dirty() <-chan struct{}
	// Take returns the changes since the last call, nil for none, and the times of the events that led to them, oldest
	// first, as far as EndpointSlices tell (annotation endpoints.kubernetes.io/last-change-trigger-time). The first
	// changes are Full. The caller owns the Changes; the ServicePorts in it are shared and must not be modified.
	Take() (changes *Changes, triggers []time.Time)
	// Resync makes the next changes Full.
	Resync()
}

// Loop carries the changes of a Feed to a Backend.
type Loop struct {
	feed    Feed
	backend Backend
	options LoopOptions

	// pending holds the changes that the Backend has not applied yet; nil for none.
	pending  *Changes
	triggers []time.Time
	next     nextTry
	// started is the time of the last call of Sync.
	started time.Time
}

// NewLoop returns a Loop that Run starts. It must be the only reader of feed.
func NewLoop(feed Feed, backend Backend, options LoopOptions) *Loop {
	return &Loop{feed: feed, backend: backend, options: options}
}

// Run calls the Backend after each change, until ctx ends; then it returns nil. It repeats a failed Sync after 100 ms,
// then after twice as long each time, up to 30 s. New changes are merged, and bring the next try forward to a tenth of
// the wait, because they may mend the cause. Run must not be called twice.
func (l *Loop) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		if l.pending != nil {
			timer.Reset(max(time.Until(l.next.until), time.Until(l.started.Add(l.options.MinSyncPeriod))))
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.feed.Dirty():
			l.collect()
		case <-timer.C:
			l.collect()
			l.sync(ctx)
		}
	}
	return nil
}

// collect adds the new changes of the Feed to the pending ones.
func (l *Loop) collect() {
	changes, triggers := l.feed.Take()
	if changes == nil {
		return
	}
	l.triggers = append(l.triggers, triggers[:min(len(triggers), MaxTriggers-len(l.triggers))]...)
	if l.pending == nil {
		l.pending = changes
	} else {
		l.pending.Merge(changes)
	}
	if l.next.wait > 0 && !l.pending.Full && len(l.pending.Ports) > maxPending {
		l.feed.Resync()
	}
	l.next.bringForward()
	if l.options.OnQueued != nil {
		l.options.OnQueued()
	}
}

// sync calls the Backend with the pending changes. If it fails, they stay pending.
func (l *Loop) sync(ctx context.Context) {
	l.started = time.Now()
	err := l.backend.Sync(ctx, l.pending)
	if err != nil && ctx.Err() != nil {
		return // stopped: no failure, and no next try
	}
	result := SyncResult{
		Changes:  l.pending,
		Triggers: l.triggers,
		Started:  l.started,
		Duration: time.Since(l.started),
		Err:      err,
	}
	if err == nil {
		l.pending, l.triggers, l.next = nil, nil, nextTry{}
	} else {
		l.next.fail()
		result.RetryIn = l.next.wait
		l.options.Logger.Error(err, "Sync failed, will retry",
			"changedPorts", len(l.pending.Ports), "full", l.pending.Full, "retryIn", result.RetryIn)
	}
	if l.options.OnSync != nil {
		l.options.OnSync(result)
	}
}

// minBackoff is the wait after the first failure.
const minBackoff = 100 * time.Millisecond

// nextTry is the time of the next Sync after failures. The zero value means at once.
type nextTry struct {
	waits backoff.ExponentialBackOff
	// wait is the wait since failed, 0 if the last try succeeded.
	wait   time.Duration
	failed time.Time
	until  time.Time
}

// fail notes a failure now.
func (b *nextTry) fail() {
	if b.wait == 0 {
		b.waits = backoff.ExponentialBackOff{InitialInterval: minBackoff, Multiplier: 2, MaxInterval: 30 * time.Second}
	}
	b.wait, b.failed = b.waits.NextBackOff(), time.Now()
	b.until = b.failed.Add(b.wait)
}

// bringForward shortens the wait, but prevents a hot loop in a busy cluster.
func (b *nextTry) bringForward() {
	if b.wait > 0 {
		b.until = b.failed.Add(max(b.wait/10, minBackoff))
	}
}
