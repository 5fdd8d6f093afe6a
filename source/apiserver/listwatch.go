package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// collection is what every typed client can do.
type collection[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// listWatch lists and watches a part of a collection, reporting outages.
func listWatch[L runtime.Object](objects collection[L], narrow narrowing, outage *outage) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			narrow(&options)
			list, err := objects.List(ctx, options)
			if err == nil {
				outage.over(ctx)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			narrow(&options)
			w, err := objects.Watch(ctx, options)
			if err == nil {
				outage.over(ctx)
				return w, nil
			}
			return nil, watchFailed(ctx, options, err, outage)
		},
	}
}

// watchFailed returns the error to give to the reflector, which treats some of them in ways that
// do not suit a proxy.
func watchFailed(ctx context.Context, options metav1.ListOptions, err error, outage *outage) error {
	if !utilnet.IsConnectionRefused(err) && !apierrors.IsTooManyRequests(err) {
		return err // the reflector reports it to the watch error handler
	}
	if options.SendInitialEvents != nil && *options.SendInitialEvents {
		// The reflector would wait for up to a minute without listening to the context, and the
		// process could not stop. Any other error makes it try a plain list, whose failure it
		// waits out properly.
		return fmt.Errorf("streaming the initial list: %v", err)
	}
	outage.failed(ctx, err) // retried by the reflector without a word
	return err
}
