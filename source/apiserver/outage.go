package apiserver

import (
	"context"
	"io"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

// outage logs failures to list or watch one resource so that a person can follow: the first of a
// kind and the recovery stand out, the repetitions between them are for debugging.
type outage struct {
	resource string

	mu   sync.Mutex
	last string // what failed last; empty while all is well
}

// failed logs an error unless it is one of the ways in which a watch normally ends.
func (o *outage) failed(ctx context.Context, err error) {
	logger := klog.FromContext(ctx)
	switch {
	case ctx.Err() != nil: // we are stopping, and so does everything under way
	case err == io.EOF:
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		logger.V(2).Info("The API server no longer has the changes since the last watch; listing anew",
			"resource", o.resource, "err", err)
	case o.news(err):
		logger.Error(err, "Cannot watch; keeping the last known state and retrying", "resource", o.resource)
	default:
		logger.V(2).Info("Still cannot watch", "resource", o.resource, "err", err)
	}
}

// news tells whether an error differs from the last one, and remembers it.
func (o *outage) news(err error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := err.Error()
	if o.last == text {
		return false
	}
	o.last = text
	return true
}

// over notes that the server has answered.
func (o *outage) over(ctx context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last != "" {
		klog.FromContext(ctx).Info("Watching again", "resource", o.resource)
		o.last = ""
	}
}
