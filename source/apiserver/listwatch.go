package apiserver

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// listWatch lists and watches a part of a collection, reporting outages.
func listWatch(objects Collection, narrow narrowing, outage *outage) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			narrow(&options)
			list, err := request(ctx, outage, func() (runtime.Object, error) { return objects.List(ctx, options) })
			if err == nil {
				outage.over(ctx)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			narrow(&options)
			w, err := request(ctx, outage, func() (watch.Interface, error) {
				w, err := objects.Watch(ctx, options)
				if err == nil && reflect.TypeOf(w) == noWatch {
					err = errNoAnswer
				}
				return w, err
			})
			switch {
			case err != nil:
				return nil, watchFailed(ctx, options, err, outage)
			case streams(options):
				outage.beginStream(ctx) // after the server has accepted the watch
				return streamed(ctx, w, outage), nil
			}
			outage.over(ctx)
			return w, nil
		},
	}
}

// request sends a request, after the pause that follows a refusal. The controller is kept meanwhile, not restarted, so
// that it finds deletions when the resource is served again.
func request[T any](ctx context.Context, outage *outage, ask func() (T, error)) (answer T, err error) {
	if err := outage.waitOut(ctx); err != nil {
		return answer, err
	}
	defer outage.awaitAnswer(ctx).Stop()
	answer, err = ask()
	outage.noteRefusal(ctx, err)
	return answer, err
}

// noWatch is the type that client-go returns, without an error, after several requests without an answer.
var noWatch = reflect.TypeOf(watch.NewEmptyWatch())

var errNoAnswer = errors.New("no answer from the API server in time")

// streams reports whether a watch begins with a list.
func streams(options metav1.ListOptions) bool {
	return options.SendInitialEvents != nil && *options.SendInitialEvents
}

// streamed passes on the events of a watch that begins with a list, and reports the end of the list to outage. The
// reflector does not report a list that breaks off.
func streamed(ctx context.Context, w watch.Interface, outage *outage) watch.Interface {
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if e.Type == watch.Bookmark {
			if o, err := meta.Accessor(e.Object); err == nil && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
				outage.over(ctx)
			}
		}
		return e, true
	})
}

// watchFailed returns the error for the reflector, whose reaction to some errors does not suit a proxy.
func watchFailed(ctx context.Context, options metav1.ListOptions, err error, outage *outage) error {
	refused := utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
	switch {
	case streams(options) && refused && !expired(err):
		// The reflector would wait for up to a minute and ignore the context, and the process could not stop. After any
		// other error it tries a plain list, and waits with the context.
		return fmt.Errorf("streaming the initial list: %v", err)
	case streams(options) && expired(err), refused:
		outage.failed(ctx, err) // the reflector retries without a report
	}
	return err // the reflector reports all others to the watch error handler
}
