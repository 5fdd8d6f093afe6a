package apiservertest

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Request is one request as the server saw it.
type Request struct {
	// Verb is one of list, watch, get, create, update, delete.
	Verb string
	// Resource is the plural name in the URL, such as endpointslices.
	Resource string
	// Query holds the options: labelSelector, resourceVersion, sendInitialEvents, …
	Query url.Values
	// Accept is the header with which the client asks for an encoding. UserAgent names the client.
	Accept, UserAgent string
	// ContentType is the encoding of the answer. Status is its HTTP status; a watch that was accepted
	// has status 200 while it is open.
	ContentType string
	Status      int
}

// requestLog keeps every request since the start.
type requestLog struct {
	mu   sync.Mutex
	seen []*Request
}

func (l *requestLog) add(verb, resource string, r *http.Request) *Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry := &Request{Verb: verb, Resource: resource, Query: r.URL.Query(), Accept: r.Header.Get("Accept"), UserAgent: r.UserAgent()}
	l.seen = append(l.seen, entry)
	return entry
}

func (l *requestLog) answered(entry *Request, status int, contentType string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry.Status, entry.ContentType = status, contentType
}

// Requests returns every request so far for a verb and a resource, oldest first. An empty verb or
// resource stands for all of them. Requests without a valid token, or for a path that the server
// does not know, are not among them.
func (s *Server) Requests(verb, plural string) []Request {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	var found []Request
	for _, entry := range s.log.seen {
		if (verb == "" || entry.Verb == verb) && (plural == "" || entry.Resource == plural) {
			found = append(found, *entry)
		}
	}
	return slices.Clip(found)
}

// answerRecorder notes how a request was answered.
type answerRecorder struct {
	http.ResponseWriter
	answered func(status int, contentType string)
}

func (a *answerRecorder) WriteHeader(status int) {
	a.answered(status, a.Header().Get("Content-Type"))
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController flush.
func (a *answerRecorder) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// user is the user of the bearer token.
const user = "system:kube-proxy"

// statusOf turns any error into the Status object that a client gets.
func statusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	return &status
}

func errForbidden(res *resource, verb string) error {
	return apierrors.NewForbidden(res.groupResource(), "", fmt.Errorf(
		"user %q cannot %s resource %q in API group %q at the cluster scope", user, verb, res.plural, res.kind.Group))
}

func errUnsupportedMediaType(contentType string) error {
	return apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "", schema.GroupResource{}, "",
		fmt.Sprintf("the body of the request was in an unknown format %q", contentType), 0, false)
}

// errVersionInFuture is the answer to a version that the server has not reached: clients see it
// when they come to a server that was restored from a backup.
func errVersionInFuture(asked, current uint64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", asked, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version",
	}}
	return err
}

func errVersionExpired(asked, compacted uint64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", asked, compacted))
}

// errNoWatchList is the answer to a streaming list from a server with the feature switched off.
func errNoWatchList() error {
	err := apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "", nil)
	err.ErrStatus.Message = `ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: ` +
		"sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
	return err
}
