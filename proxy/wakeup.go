package proxy

import (
	"context"
	"sync"
	"time"
)

// wakeup wakes one goroutine that receives from it. It has room for one value, so all signals that come while the
// goroutine works become one.
type wakeup chan struct{}

func newWakeup() wakeup { return make(wakeup, 1) }

// signal wakes the goroutine. It does not wait.
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
