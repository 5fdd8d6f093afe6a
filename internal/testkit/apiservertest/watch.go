package apiservertest

import (
	"context"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"
)

// stream is one open watch.
type stream struct {
	server    *Server
	resource  *resource
	match     func(Object) bool
	bookmarks bool
	encoder   *restwatch.Encoder
	flush     func() error
}

// watch streams events until the client goes, the time the client set is over, or the server ends
// it. Where it starts depends on the version asked for: at that version, which may be one to come, or
// with what exists now.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, t target, options *metav1.ListOptions) error {
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents
	if initial && s.options.WithoutWatchList {
		return errNoWatchList()
	}
	match, err := selection(t, options)
	if err != nil {
		return err
	}
	start, err := startVersion(options.ResourceVersion)
	if err == nil && initial {
		err = s.checkReached(options.ResourceVersion)
	}
	if err != nil {
		return err
	}
	ctx, cancel := watchContext(r.Context(), options.TimeoutSeconds)
	defer cancel()
	ended := s.watchOpened(t.resource)
	defer s.watchClosed(t.resource)

	out := &stream{s, t.resource, match, options.AllowWatchBookmarks,
		newEventEncoder(w, r, t.resource), http.NewResponseController(w).Flush}
	bookmarks := s.store.since(t.resource, start).bookmarks // those asked for once the client knows of the watch count
	from, err := out.begin(start, initial)
	if err == nil {
		_ = out.follow(ctx, ended, from, bookmarks)
	}
	return nil // the answer has begun: an error can only end it
}

// watchContext ends when the client leaves or its time is over.
func watchContext(ctx context.Context, seconds *int64) (context.Context, context.CancelFunc) {
	if seconds == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(*seconds)*time.Second)
}

// watchOpened counts a watch and returns what is closed to end it.
func (s *Server) watchOpened(r *resource) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching[r]++
	return s.endWatch
}

func (s *Server) watchClosed(r *resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching[r]--
}

// begin sends what comes before the first change, and returns the version to follow from.
func (w *stream) begin(start uint64, initial bool) (uint64, error) {
	if start != 0 && !initial {
		if _, compacted := w.server.store.versions(); start < compacted {
			// kube-apiserver says it inside the stream, with HTTP status 200.
			err := w.send(watch.Event{Type: watch.Error, Object: statusOf(errVersionExpired(start, compacted))})
			return 0, firstError(err, errVersionExpired(start, compacted))
		}
		return start, w.flush()
	}
	found, version := w.server.store.snapshot(w.resource, w.match)
	for _, obj := range found {
		if err := w.encoder.Encode(&watch.Event{Type: watch.Added, Object: obj}); err != nil {
			return 0, err
		}
	}
	if initial && w.bookmarks {
		if err := w.bookmark(version, map[string]string{metav1.InitialEventsAnnotationKey: "true"}); err != nil {
			return 0, err
		}
	}
	return version, w.flush()
}

// follow sends changes as they are made.
func (w *stream) follow(ctx context.Context, ended <-chan struct{}, version, bookmarks uint64) error {
	position := news{version: version, bookmarks: bookmarks}
	for {
		next, err := w.catchUp(position.version, position.bookmarks)
		if err != nil {
			return err
		}
		position = next
		select {
		case <-position.more:
		case <-ended:
			// What was due when the watch was ended still goes out, whichever of the two the
			// stream noticed first.
			_, err := w.catchUp(position.version, position.bookmarks)
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// catchUp sends everything after a version, and a bookmark if one is due, and returns how far it came.
func (w *stream) catchUp(version, bookmarksSent uint64) (news, error) {
	news := w.server.store.since(w.resource, version)
	for _, c := range news.changes {
		if event, ok := c.event(w.match); ok {
			if err := w.send(event); err != nil {
				return news, err
			}
		}
	}
	if w.bookmarks && news.bookmarks != bookmarksSent {
		return news, w.bookmark(news.version, nil)
	}
	return news, nil
}

func (w *stream) bookmark(version uint64, annotations map[string]string) error {
	obj, err := w.resource.newObject()
	if err != nil {
		return err
	}
	obj.SetResourceVersion(formatVersion(version))
	obj.SetAnnotations(annotations)
	return w.send(watch.Event{Type: watch.Bookmark, Object: obj})
}

func (w *stream) send(event watch.Event) error {
	return firstError(w.encoder.Encode(&event), w.flush())
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
