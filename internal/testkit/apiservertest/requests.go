package apiservertest

import (
	"net/http"
	"net/url"
	"slices"
	"sync"
)

// Request is one request as the server saw it.
type Request struct {
	// Verb is one of list, watch, get, create, update, delete.
	Verb string
	// Resource is the plural name in the URL, such as endpointslices.
	Resource string
	// Query holds the options: labelSelector, resourceVersion, sendInitialEvents, …
	Query url.Values
	// Accept is the header with which the client asks for an encoding.
	Accept string
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
	entry := &Request{Verb: verb, Resource: resource, Query: r.URL.Query(), Accept: r.Header.Get("Accept")}
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
