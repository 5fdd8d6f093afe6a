package proxy

import (
	"context"
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
