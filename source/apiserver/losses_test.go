package apiserver

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/model"
)

// guarded gives a Source a guard.
func guarded(guard *model.ListGuard) func(*Source) {
	return func(s *Source) { s.config.Guard = guard }
}

// holds returns a condition: the guard holds a resource for a reason that contains says.
func holds(guard *model.ListGuard, resource, says string) func() bool {
	return func() bool {
		return slices.ContainsFunc(guard.Held(), func(held string) bool {
			return strings.HasPrefix(held, resource+": ") && strings.Contains(held, says)
		})
	}
}

func holdsNothing(guard *model.ListGuard) func() bool {
	return func() bool { return len(guard.Held()) == 0 }
}

// kubernetes returns default/kubernetes and its slice.
func kubernetes() []object {
	return []object{dialled("kubernetes", "10.96.0.99"), slice("kubernetes", "kubernetes")}
}

// wipe deletes objects while no client watches, and creates others.
func (c *cluster) wipe(t *testing.T, sink *recorder, gone, after []object) {
	t.Helper()
	awaitWatches(t, c, sink)
	watchedFor(t, c, sink)
	c.server.Stop()
	for _, obj := range append(gone, service("event"), slice("event-a", "event")) {
		c.delete(t, obj)
	}
	c.server.Compact()
	for _, obj := range after {
		c.change(t, c.server.Create, obj)
	}
	if err := c.server.Resume(); err != nil {
		t.Fatal(err)
	}
}

func testEmptyListIsNotBelieved(t *testing.T) {
	for name, after := range map[string][]object{"none at all": nil, "default/kubernetes": kubernetes()} {
		t.Run(name, func(t *testing.T) {
			forEachObedientServer(t, "lose all objects while a client is away", func(t *testing.T, c *cluster) {
				testEmptyListOf(t, c, after)
			})
		})
	}
}

func testEmptyListOf(t *testing.T, c *cluster, after []object) {
	gone := append(kubernetes(), node(thisNode), dialled("a", "10.96.0.1"), dialled("b", "10.96.0.2"), slice("a-1", "a"), slice("b-1", "b"))
	c.create(t, gone...)
	logs, guard := &logLines{}, &model.ListGuard{}
	sink := c.runLogged(t, logs, guarded(guard))
	c.wipe(t, sink, gone, after)
	for _, resource := range []string{"services", "endpointslices", "nodes"} {
		await.True(t, "none of "+resource+" to be held", holds(guard, resource, "stays until 10m0s after it has others"))
	}
	const a, b, a1, b1 = "services/default/a", "services/default/b", "endpointslices/default/a-1", "endpointslices/default/b-1"
	stay := []string{a, b, a1, b1, "services/default/kubernetes", "endpointslices/default/kubernetes", "nodes//" + thisNode}
	expectStay := func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			if sink.get(id) == nil || sink.deletions(id) > 0 {
				t.Errorf("%s went with a list without it", id)
			}
		}
	}
	expectStay(stay...)
	if got := logs.count("Not believing what a list lacks"); got != 3 {
		t.Errorf("%d errors, want one for each resource:\n%s", got, logs)
	}

	c.create(t, dialled("b", "10.96.0.2"), slice("b-2", "b"), node(thisNode))
	await.True(t, "the slice that replaces another one of its Service", sink.lacks(b1))
	await.True(t, "an end of the hold of Services", holds(guard, "services", "stays until 2"))
	await.True(t, "an end of the hold of slices", holds(guard, "endpointslices", "stays until 2"))
	await.True(t, "the Node to be there again", func() bool { return !holds(guard, "nodes", "")() })
	expectStay(a, b, a1, "nodes//"+thisNode)

	if !guard.Believe() {
		t.Error("nothing was held")
	}
	for _, id := range []string{a, a1} {
		if sink.get(id) != nil {
			t.Errorf("%s is still there", id)
		}
	}
	expectStay(b, "nodes//"+thisNode)
	if !holdsNothing(guard)() {
		t.Errorf("held: %q", guard.Held())
	}
}

func testMostOfAListIsHeldForAWhile(t *testing.T) {
	forEachObedientServer(t, "lose objects while a client is away", func(t *testing.T, c *cluster) {
		gone, stays := []object{}, []object{dialled("stays", "10.96.0.50"), slice("stays-1", "stays")}
		for i := range 20 {
			name := fmt.Sprint("svc-", i)
			gone = append(gone, dialled(name, fmt.Sprint("10.96.0.", 1+i)), slice(name+"-1", name))
		}
		c.create(t, append(slices.Clone(gone), stays...)...)
		guard := &model.ListGuard{Patience: 2 * time.Second}
		var held atomic.Int32
		guard.OnHeld = func(_, reason string) {
			if strings.Contains(reason, "stays until 2") {
				held.Add(1)
			}
		}
		sink := c.run(t, guarded(guard))
		c.wipe(t, sink, gone, []object{dialled("new", "10.96.0.60")})
		await.True(t, "the new Service", sink.has("services/default/new"))
		for i := range 20 {
			await.True(t, "a Service to go", sink.lacks(fmt.Sprint("services/default/svc-", i)))
			await.True(t, "a slice to go", sink.lacks(fmt.Sprintf("endpointslices/default/svc-%d-1", i)))
		}
		await.True(t, "the end of the hold", holdsNothing(guard))
		if held.Load() < 2 {
			t.Error("Services and slices were not held before")
		}
		for _, id := range []string{"services/default/stays", "services/default/new", "endpointslices/default/stays-1"} {
			if sink.get(id) == nil || sink.deletions(id) > 0 {
				t.Errorf("%s went", id)
			}
		}
	})
}

func testAnotherStorageIsNotBelieved(t *testing.T) {
	forEachObedientServer(t, "lose its storage", func(t *testing.T, c *cluster) {
		all := append(kubernetes(), dialled("a", "10.96.0.1"), dialled("b", "10.96.0.2"), dialled("c", "10.96.0.3"), slice("a-1", "a"), slice("b-1", "b"), slice("c-1", "c"))
		c.create(t, all...)
		guard := &model.ListGuard{}
		sink := c.run(t, guarded(guard))
		c.wipe(t, sink, all, append(kubernetes(), dialled("b", "10.96.0.2"), dialled("c", "10.96.0.3"), slice("b-1", "b"), slice("c-1", "c")))
		// The Service that watchedFor made has no ClusterIP.
		for resource, lacks := range map[string]string{"services": "1 of 4", "endpointslices": "2 of 5"} {
			await.True(t, "a hold of "+resource, holds(guard, resource, "the source lacks "+lacks+" and is another cluster or has a new storage, by the UID of default/kubernetes"))
		}
		if sink.get("services/default/a") == nil || sink.get("endpointslices/default/a-1") == nil {
			t.Error("what another storage lacks is gone")
		}
	})
}

func testEmptyListAtTheStartIsNotBelieved(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *cluster) {
		logs, guard := &logLines{}, &model.ListGuard{Before: func(string, bool) bool { return true }}
		headless := service("headless")
		headless.Spec.ClusterIP = "None"
		c.create(t, headless, node(thisNode))
		sink := c.runLogged(t, logs, guarded(guard))
		const reason = "the source has none, but the rules in force have some"
		await.True(t, "no Services to be held", holds(guard, "services", reason))
		await.True(t, "the reason why it is not synced", func() bool {
			return sink.waitsFor("endpointslices: " + reason + "; services: " + reason)
		})
		if sink.synced() {
			t.Error("Synced without a Service")
		}
		c.create(t, dialled("web", "10.96.0.4"))
		await.True(t, "the reason why it is not synced", func() bool { return sink.waitsFor("endpointslices: " + reason) })
		c.create(t, slice("web-a", "web"))
		await.True(t, "Synced with the first Service and slice", sink.synced)
		await.True(t, "the end", holdsNothing(guard))
		if got := logs.count("Not believing what a list lacks"); got != 2 {
			t.Errorf("%d errors, want one for each resource:\n%s", got, logs)
		}
	})
}

func testProxyWithANameMayHaveNoServices(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *cluster) {
		guard := &model.ListGuard{Before: func(string, bool) bool { return true }}
		sink := c.run(t, guarded(guard), proxyName("mesh"))
		await.True(t, "Synced", sink.synced)
		if !holdsNothing(guard)() {
			t.Errorf("held: %q", guard.Held())
		}
	})
}

func testDeletionsThatAreWatchedAreBelieved(t *testing.T) {
	forEachObedientServer(t, "delete through its own store", func(t *testing.T, c *cluster) {
		c.create(t, dialled("a", "10.96.0.1"), slice("a-1", "a"), node(thisNode))
		guard := &model.ListGuard{}
		sink := c.run(t, guarded(guard))
		awaitWatches(t, c, sink)
		for id, obj := range map[string]object{
			"services/default/a": dialled("a", "10.96.0.1"), "endpointslices/default/a-1": slice("a-1", "a"), "nodes//" + thisNode: node(thisNode),
		} {
			c.delete(t, obj)
			await.True(t, "the last one to go: "+id, sink.lacks(id))
		}
		if !holdsNothing(guard)() {
			t.Errorf("held: %q", guard.Held())
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
