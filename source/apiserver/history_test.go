package apiserver

import (
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/tracker"
)

// lists counts how often the state of a resource was asked for in full, in either way.
func lists(server *apiservertest.Server, resource string) int {
	n := len(server.Requests("list", resource))
	for _, r := range server.Requests("watch", resource) {
		if r.Query.Get("sendInitialEvents") == "true" && r.Status == 200 {
			n++
		}
	}
	return n
}

// awaitWatches waits until the Source is synced and watches everything.
func awaitWatches(t *testing.T, c *cluster, sink *recorder) {
	t.Helper()
	await.True(t, "Synced", sink.synced)
	for _, resource := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
		await.True(t, "a watch of "+resource, func() bool { return c.server.Watches(resource) > 0 })
	}
}

// watchedFor sends something through the watches of Services and slices: reflectors list anew after
// a watch that ends within its first second without an event.
func watchedFor(t *testing.T, c *cluster, sink *recorder) {
	t.Helper()
	c.create(t, service("event"), slice("event-a", "event"))
	await.True(t, "a Service through the watch", sink.has("services/default/event"))
	await.True(t, "a slice through the watch", sink.has("endpointslices/default/event-a"))
}

func testBookmarkSavesTheNextList(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		bookmark  bool
		wantLists int
	}{
		"with a bookmark the watch goes on where it was": {bookmark: true, wantLists: 1},
		"without one the history is too old":             {bookmark: false, wantLists: 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			forEachObedientServer(t, "send bookmarks, end watches and compact", func(t *testing.T, c *cluster) {
				sink := c.run(t)
				awaitWatches(t, c, sink)
				c.create(t, service("first"))
				await.True(t, "the first Service", sink.has("services/default/first"))

				// Changes that the watch does not see make its version old.
				c.create(t, service("foreign", tracker.LabelServiceProxyName, "other"))
				if test.bookmark {
					c.server.SendBookmarks()
				}
				c.server.Compact()
				watches := len(c.server.Requests("watch", "services"))
				c.server.EndWatches()
				// The old watch could still bring the next Service, and nothing would be listed.
				await.True(t, "another watch", func() bool { return len(c.server.Requests("watch", "services")) > watches })

				c.create(t, service("second"))
				await.True(t, "the second Service", sink.has("services/default/second"))
				if got := lists(c.server, "services"); got != test.wantLists {
					t.Errorf("Services were listed %d times, want %d", got, test.wantLists)
				}
			})
		})
	}
}

func testCompactionWhileDisconnectedLosesNothing(t *testing.T) {
	forEachObedientServer(t, "compact while a client is away", func(t *testing.T, c *cluster) {
		c.create(t, node(thisNode), service("kept"), service("changed"), service("gone"),
			slice("gone-a", "gone"), serviceCIDR("gone", "10.99.0.0/16"))
		sink := c.run(t)
		awaitWatches(t, c, sink)
		watchedFor(t, c, sink)

		c.server.Stop()
		c.delete(t, service("gone"))
		c.delete(t, slice("gone-a", "gone"))
		c.delete(t, serviceCIDR("gone", ""))
		c.change(t, c.server.Update, service("changed", "step", "2"))
		c.change(t, c.server.Create, service("new"))
		c.server.Compact()
		if err := c.server.Resume(); err != nil {
			t.Fatal(err)
		}

		for _, id := range []string{"services/default/gone", "endpointslices/default/gone-a", "servicecidrs//gone"} {
			await.True(t, id+" to go", sink.lacks(id))
			if got := sink.deletions(id); got != 1 {
				t.Errorf("%s was deleted %d times, want once", id, got)
			}
		}
		await.True(t, "the update", sink.labelled("services/default/changed", "2"))
		await.True(t, "the new Service", sink.has("services/default/new"))
		if sink.get("services/default/kept") == nil || sink.deletions("services/default/kept") > 0 {
			t.Error("a Service that was not touched was deleted")
		}
		if got := lists(c.server, "services"); got != 2 {
			t.Errorf("Services were listed %d times, want 2: at first, and after the history was lost", got)
		}
	})
}
