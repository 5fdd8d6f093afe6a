package apiserver

import (
	"bytes"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
)

// held collects what EmptyGuard.OnHeld is told.
type held struct {
	mu  sync.Mutex
	now map[string]string
}

func (h *held) listen(s *Source) {
	h.now = map[string]string{}
	s.config.Empty.OnHeld = func(resource, reason string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.now[resource] = reason
	}
}

func (h *held) is(resource string) func() bool {
	return func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.now[resource] != ""
	}
}

func (h *held) isNot(resource string) func() bool {
	return func() bool { return !h.is(resource)() }
}

// before makes Services of an earlier process be in force.
func before(s *Source) { s.config.Empty.Before = func(string) bool { return true } }

func testEmptyListIsNotBelieved(t *testing.T) {
	forEachObedientServer(t, "lose all objects while a client is away", func(t *testing.T, c *cluster) {
		c.create(t, dialled("a", "10.96.0.1"), dialled("b", "10.96.0.2"), slice("a-1", "a"), slice("b-1", "b"))
		logs, held := &logLines{}, &held{}
		sink := c.runLogged(t, logs, held.listen)
		awaitWatches(t, c, sink)
		watchedFor(t, c, sink)

		c.server.Stop()
		for _, obj := range []apiservertest.Object{dialled("a", "10.96.0.1"), dialled("b", "10.96.0.2"), dialled("event", "10.96.0.3"), slice("a-1", "a"), slice("b-1", "b"), slice("event-a", "event")} {
			c.delete(t, obj)
		}
		c.server.Compact()
		if err := c.server.Resume(); err != nil {
			t.Fatal(err)
		}
		await.True(t, "no Services to be held", held.is("services"))
		await.True(t, "no slices to be held", held.is("endpointslices"))
		for _, id := range []string{"services/default/a", "services/default/b", "endpointslices/default/a-1", "endpointslices/default/b-1"} {
			if sink.get(id) == nil || sink.deletions(id) > 0 {
				t.Errorf("%s went with an empty list", id)
			}
		}
		if got := logs.count("Not believing an empty state"); got != 2 {
			t.Errorf("%d errors, want one for each resource:\n%s", got, logs)
		}

		c.create(t, dialled("b", "10.96.0.2"))
		await.True(t, "the end with the first Service", held.isNot("services"))
		await.True(t, "the Service that is not there any more to go", sink.lacks("services/default/a"))
		if sink.get("services/default/b") == nil || sink.deletions("services/default/b") > 0 {
			t.Error("the Service that is there again went in between")
		}
		c.create(t, slice("b-2", "b"))
		await.True(t, "the end with the first slice", held.isNot("endpointslices"))
		await.True(t, "the slice that is not there any more to go", sink.lacks("endpointslices/default/b-1"))
	})
}

func testEmptyListAtTheStartIsNotBelieved(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *cluster) {
		logs, held := &logLines{}, &held{}
		headless := service("headless")
		headless.Spec.ClusterIP = "None"
		c.create(t, headless, node(thisNode))
		sink := c.runLogged(t, logs, held.listen, before)
		await.True(t, "no Services to be held", held.is("services"))
		const reason = "the source has none, but every cluster has some"
		await.True(t, "the reason why it is not synced", func() bool {
			return sink.waitsFor("endpointslices: " + reason + "; services: " + reason)
		})
		if sink.synced() {
			t.Error("Synced without a Service")
		}
		c.create(t, dialled("web", "10.96.0.4"))
		await.True(t, "the end of Services", held.isNot("services"))
		await.True(t, "the reason why it is not synced", func() bool { return sink.waitsFor("endpointslices: " + reason) })
		c.create(t, slice("web-a", "web"))
		await.True(t, "Synced with the first Service and slice", sink.synced)
		await.True(t, "the end of slices", held.isNot("endpointslices"))
		if got := logs.count("Not believing an empty state"); got != 2 {
			t.Errorf("%d errors, want one for each resource:\n%s", got, logs)
		}
	})
}

func testProxyWithANameMayHaveNoServices(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *cluster) {
		held := &held{}
		sink := c.run(t, held.listen, before, proxyName("mesh"))
		await.True(t, "Synced", sink.synced)
		if held.is("services")() {
			t.Error("no Services are held")
		}
	})
}

func testDeletionsThatAreWatchedAreBelieved(t *testing.T) {
	forEachObedientServer(t, "delete through its own store", func(t *testing.T, c *cluster) {
		c.create(t, dialled("a", "10.96.0.1"), slice("a-1", "a"))
		held := &held{}
		sink := c.run(t, held.listen)
		awaitWatches(t, c, sink)
		c.delete(t, dialled("a", "10.96.0.1"))
		c.delete(t, slice("a-1", "a"))
		await.True(t, "the last Service to go", sink.lacks("services/default/a"))
		await.True(t, "the last slice to go", sink.lacks("endpointslices/default/a-1"))
		if held.is("services")() || held.is("endpointslices")() {
			t.Error("deletions one by one are held")
		}
	})
}

// cutter aborts streamed lists just before they are complete, and refuses to continue a watch. It is off after the last
// of its steps, each of which comes with one such list.
type cutter struct {
	mu    sync.Mutex
	steps []func()
}

func (c *cutter) on() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.steps) > 0
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps[0]()
	c.steps = c.steps[1:]
	panic(http.ErrAbortHandler)
}

func (c *cutter) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !c.on():
			next.ServeHTTP(w, r)
		case r.URL.Query().Get("sendInitialEvents") == "true":
			next.ServeHTTP(&cutWriter{w, c}, r)
		default:
			http.Error(w, "gone", http.StatusGone)
		}
	})
}

type cutWriter struct {
	http.ResponseWriter
	cutter *cutter
}

func (w *cutWriter) Write(data []byte) (int, error) {
	if bytes.Contains(data, []byte("initial-events-end")) {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		time.Sleep(200 * time.Millisecond) // lets the client read, because it may not read the rest of a stream that is aborted
		w.cutter.cut()
	}
	return w.ResponseWriter.Write(data)
}

// Unwrap is for http.ResponseController.
func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// The server whose list breaks may be ahead of the one that answers next.
func testListThatBreaksPublishesNothing(t *testing.T) {
	t.Parallel()
	c := inProcess(t, apiservertest.Options{})
	c.create(t, dialled("a", "10.96.0.1"), slice("a-1", "a"), slice("b-1", "b"))
	cutter := &cutter{}
	c.server.Wrap("endpointslices", cutter.wrap)
	sink := c.run(t)
	awaitWatches(t, c, sink)
	watchedFor(t, c, sink)

	cutter.mu.Lock()
	cutter.steps = []func(){
		func() { c.change(t, c.server.Create, slice("ahead-1", "ahead")) },
		func() { c.delete(t, slice("ahead-1", "ahead")); c.delete(t, slice("b-1", "b")) },
	}
	cutter.mu.Unlock()
	c.server.EndWatches()
	await.True(t, "the deletion, with the first list that is complete", sink.lacks("endpointslices/default/b-1"))
	if sink.seen("endpointslices/default/ahead-1") {
		t.Error("a part of a list that broke was published")
	}
}

// dialled returns a Service with a ClusterIP.
func dialled(name, clusterIP string) *corev1.Service {
	s := service(name)
	s.Spec.ClusterIP = clusterIP
	return s
}
