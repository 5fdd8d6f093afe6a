package apiserver

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// refusal lets the proxy do without a resource that the API server does not have (404) or does not
// allow (403). It stands between a reflector and the server.
type refusal struct {
	outage *outage
	pause  time.Duration

	mu     sync.Mutex
	reason metav1.StatusReason // what was logged last; empty while the resource is served
}

func newRefusal(outage *outage, pause time.Duration) *refusal {
	return &refusal{outage: outage, pause: pause}
}

// isRefusal tells errors that retrying soon cannot mend.
func isRefusal(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
}

// guard makes inner wait after a refusal. The controller is kept, not restarted, so that it notices
// what was deleted meanwhile when the resource is served again.
func (r *refusal) guard(inner *cache.ListWatch) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if err := r.waitOut(ctx); err != nil {
				return nil, err
			}
			list, err := inner.ListWithContext(ctx, options)
			r.note(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if err := r.waitOut(ctx); err != nil {
				return nil, err
			}
			w, err := inner.WatchWithContext(ctx, options)
			r.note(ctx, err)
			return w, err
		},
	}
}

// waitOut pauses if the last answer was a refusal.
func (r *refusal) waitOut(ctx context.Context) error {
	r.mu.Lock()
	refused := r.reason != ""
	r.mu.Unlock()
	if !refused {
		return nil
	}
	timer := time.NewTimer(wait.Jitter(r.pause, 1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// note logs a refusal when it begins, changes or ends. Other errors say nothing about it.
func (r *refusal) note(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	logger := klog.FromContext(ctx)
	switch {
	case err == nil && r.reason != "":
		r.reason = ""
		logger.Info("The API server serves the resource now", "resource", r.outage.resource)
	case err != nil && isRefusal(err):
		if reason := apierrors.ReasonForError(err); r.reason != reason {
			r.reason = reason
			r.log(logger, err)
		}
		r.outage.refused(ctx, apierrors.IsForbidden(err)) // also after an outage, which may have been during the refusal
	}
}

func (r *refusal) log(logger klog.Logger, err error) {
	if apierrors.IsForbidden(err) {
		logger.Error(err, "Not allowed to list and watch; going on without. The proxy's ClusterRole needs both verbs",
			"resource", r.outage.resource)
		return
	}
	logger.Info("The API server does not have the resource; going on without", "resource", r.outage.resource, "err", err)
}
