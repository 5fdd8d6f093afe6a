package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

const (
	// reminder is the time between log lines about one outage.
	reminder = 5 * time.Minute
	// maxKinds bounds the different errors of one outage that are logged.
	maxKinds = 4
)

// outage records whether one resource can be listed and watched. It logs the first error of each kind, reminders, and
// the recovery; at the debug level also repetitions.
type outage struct {
	resource string
	// waiting is called with the reason while the resource is not listed, and with "" when it is; nil for an optional
	// resource.
	waiting func(reason string)
	// onFailing is called when the resource begins and ceases to fail.
	onFailing func(failing bool)
	// silence bounds the time to the first answer; a longer time is a failure.
	silence time.Duration
	// noticed is closed by notice, at the first failure.
	noticed chan struct{}
	notice  func()
	// pause is the least time between requests for an optional resource while the server does not have it (404) or does
	// not allow it (403). With 0, a refusal is a failure like others.
	pause time.Duration

	// mu guards what follows, and keeps the calls of onFailing in order.
	mu sync.Mutex
	// answered says that the server has answered a request with objects.
	answered bool
	failing  bool
	// expired says that the server no longer had the changes since the last watch, and has not answered since.
	expired bool
	// streaming says that a streamed list has begun, and has neither ended nor failed.
	streaming bool
	// refusal is the reason of the last logged refusal; empty while the resource is served.
	refusal metav1.StatusReason
	// since is the time of the first failure. kinds holds the logged errors; logged is the time of the last log line.
	since, logged time.Time
	failures      int
	kinds         map[string]bool
}

func newOutage(resource string) *outage {
	noticed := make(chan struct{})
	return &outage{resource: resource, onFailing: func(bool) {}, noticed: noticed, notice: sync.OnceFunc(func() { close(noticed) })}
}

// failed logs an error, unless a watch normally ends with it.
func (o *outage) failed(ctx context.Context, err error) {
	logger := klog.FromContext(ctx)
	switch {
	case ctx.Err() != nil: // the source stops
	case err == io.EOF:
	case o.refuses(err): // logged by noteRefusal
	case expired(err) && o.mayExpire():
		logger.V(2).Info("The API server no longer has the changes since the last watch; listing anew",
			"resource", o.resource, "err", err)
	default:
		o.count(logger, tidy(err))
	}
}

// expired reports whether the server no longer has the changes since the last watch.
func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// mayExpire reports whether the server may answer that the version is too old: once, since the list that follows has no
// version.
func (o *outage) mayExpire() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	may := !o.expired
	o.expired = true
	return may
}

// beginStream records the begin of a streamed list. A previous stream without its final bookmark is a failure.
func (o *outage) beginStream(ctx context.Context) {
	o.mu.Lock()
	incomplete := o.streaming
	o.mu.Unlock()
	if incomplete {
		o.failed(ctx, errors.New("the API server ended the list before it was complete"))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.streaming = true
}

// count records one more failure, and logs it if its kind is new.
func (o *outage) count(logger klog.Logger, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if o.failures == 0 {
		o.since, o.logged, o.kinds = now, now, map[string]bool{}
	}
	o.failures++
	o.streaming = false // counted here
	o.setFailing(true)
	if !o.answered && o.waiting != nil {
		o.waiting(err.Error())
	}
	switch kind := err.Error(); {
	case !o.kinds[kind] && len(o.kinds) < maxKinds:
		o.kinds[kind] = true
		o.logged = now
		logger.Error(err, o.consequence(), "resource", o.resource)
	case now.Sub(o.logged) >= reminder:
		o.logged = now
		logger.Error(err, "Still cannot watch", "resource", o.resource, "since", o.since, "failures", o.failures)
	default:
		logger.V(2).Info("Still cannot watch", "resource", o.resource, "err", err)
	}
}

// consequence says what the proxy does during the outage.
func (o *outage) consequence() string {
	switch {
	case o.answered:
		return "Cannot watch; keeping the last known state and retrying"
	case o.waiting != nil:
		return "Cannot list; programming nothing before it is listed, and retrying"
	}
	return "Cannot list; going on without it and retrying"
}

// over records an answer of the server.
func (o *outage) over(ctx context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.answered && o.waiting != nil {
		o.waiting("")
	}
	o.answered, o.expired, o.streaming = true, false, false
	o.setFailing(false)
	o.end(ctx, "Watching again")
}

// end logs the end of an outage, if there was one. It needs mu.
func (o *outage) end(ctx context.Context, how string) {
	if o.failures > 0 {
		klog.FromContext(ctx).Info(how,
			"resource", o.resource, "outage", time.Since(o.since).Round(time.Second).String(), "failures", o.failures)
		o.failures = 0
	}
}

// refuses reports whether an error is a refusal, which a quick retry cannot mend.
func (o *outage) refuses(err error) bool {
	return o.pause > 0 && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err))
}

// waitOut pauses if the last answer was a refusal.
func (o *outage) waitOut(ctx context.Context) error {
	o.mu.Lock()
	refused := o.refusal != ""
	o.mu.Unlock()
	if !refused {
		return nil
	}
	select {
	case <-time.After(wait.Jitter(o.pause, 1)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// noteRefusal logs a refusal when it begins, changes or ends. Other errors neither begin nor end a refusal. A server
// that does not have the resource is no failure.
func (o *outage) noteRefusal(ctx context.Context, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	logger := klog.FromContext(ctx)
	if err == nil && o.refusal != "" {
		o.refusal = ""
		logger.Info("The API server serves the resource now", "resource", o.resource)
	}
	if !o.refuses(err) {
		return
	}
	forbidden, reason := apierrors.IsForbidden(err), apierrors.ReasonForError(err)
	switch {
	case o.refusal == reason:
	case forbidden:
		logger.Error(err, "Not allowed to list and watch; going on without. The proxy's ClusterRole needs both verbs",
			"resource", o.resource)
	default:
		logger.Info("The API server does not have the resource; going on without", "resource", o.resource, "err", err)
	}
	o.refusal, o.streaming = reason, false
	o.notice()
	o.setFailing(forbidden)
	o.end(ctx, "Answered again, with a refusal") // an outage may have begun during the refusal
}

// awaitAnswer starts a timer for one request, and records a failure if the server neither answers nor fails in time: a
// request has no time limit, and client-go repeats some requests silently.
func (o *outage) awaitAnswer(ctx context.Context) *time.Timer {
	return time.AfterFunc(o.silence, func() {
		o.mu.Lock()
		known := o.failing
		o.mu.Unlock()
		if !known {
			o.failed(ctx, fmt.Errorf("no answer from the API server for %v", o.silence))
		}
	})
}

// setFailing needs mu.
func (o *outage) setFailing(failing bool) {
	if failing {
		o.notice()
	}
	if o.failing != failing {
		o.failing = failing
		o.onFailing(failing)
	}
}

// Parts of an error that differ each time: the options of a request, with a random time limit, and the local port of a
// connection.
var (
	requestOptions = regexp.MustCompile(`\?[^" ]*`)
	ownAddress     = regexp.MustCompile(`(tcp[46]?) [^ ]+->`)
)

// tidy returns an error without the parts that differ between tries.
func tidy(err error) error {
	text := requestOptions.ReplaceAllString(err.Error(), "")
	return errors.New(ownAddress.ReplaceAllString(text, "$1 "))
}
