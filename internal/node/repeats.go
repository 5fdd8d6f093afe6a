package node

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// repetitions is how verbose a log must be to have an error again that it had before.
const repetitions = 2

// withoutRepeats returns a logger that logs an error again only when it is very verbose: an event is
// tried every ten seconds while the API server is away. After the end of ctx, which interrupts the posting
// of events, it takes no error for one.
func withoutRepeats(ctx context.Context, logger klog.Logger) klog.Logger {
	sink := logger.GetSink()
	if sink == nil {
		return logger
	}
	if deeper, ok := sink.(logr.CallDepthLogSink); ok {
		sink = deeper.WithCallDepth(1)
	}
	return logger.WithSink(&repeats{LogSink: sink, ended: ctx.Done()})
}

// repeats remembers the last error.
type repeats struct {
	logr.LogSink
	ended <-chan struct{}
	mu    sync.Mutex
	last  string
}

// Error implements logr.LogSink.
func (r *repeats) Error(err error, message string, keysAndValues ...any) {
	text := message
	if err != nil {
		text += ": " + err.Error()
	}
	r.mu.Lock()
	again := text == r.last || r.isOver()
	r.last = text
	r.mu.Unlock()
	switch {
	case !again:
		r.LogSink.Error(err, message, keysAndValues...)
	case r.Enabled(repetitions):
		r.Info(repetitions, message, append(keysAndValues, "err", err)...)
	}
}

func (r *repeats) isOver() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}
