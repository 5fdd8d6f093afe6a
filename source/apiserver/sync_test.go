package apiserver

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
)

func testSyncedComesAfterEverythingThatExists(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *cluster) {
		c.create(t, node(thisNode), node("node-2"), serviceCIDR("more", "10.97.0.0/16"))
		var want []string
		for i := range 50 {
			name := fmt.Sprintf("svc-%d", i)
			c.create(t, service(name), slice(name+"-a", name))
			want = append(want, "services/default/"+name, "endpointslices/default/"+name+"-a")
		}
		want = append(want, "nodes//"+thisNode, "servicecidrs//more")

		sink := c.run(t)
		await.True(t, "Synced", sink.synced)
		for _, id := range want {
			if sink.atSynced[id] == nil {
				t.Errorf("%s was not published before Synced", id)
			}
		}
		if sink.seen("nodes//node-2") {
			t.Error("another node's Node was published")
		}
	})
}

func testEmptyClusterIsSynced(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *cluster) {
		sink := c.run(t)
		await.True(t, "Synced without a Node", sink.synced)
		c.create(t, node(thisNode))
		await.True(t, "the Node that registered later", sink.has("nodes//"+thisNode))
	})
}

func testSyncedWaitsForEveryNeededResource(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{"services", "endpointslices"} {
		t.Run(resource, func(t *testing.T) {
			forEachObedientServer(t, "fail for one resource", func(t *testing.T, c *cluster) {
				c.create(t, node(thisNode), service("web"), slice("web-a", "web"))
				c.server.Refuse(resource, http.StatusInternalServerError)
				sink := c.run(t)
				// A second failed list says that the first was not taken for an answer.
				await.True(t, "a second attempt", func() bool {
					return len(c.server.Requests("list", resource)) >= 2
				})
				if sink.synced() {
					t.Fatalf("Synced although %s could not be listed", resource)
				}
				c.server.Refuse(resource, 0)
				await.True(t, "Synced", sink.synced)
				for _, id := range []string{"services/default/web", "endpointslices/default/web-a", "nodes//" + thisNode} {
					if sink.atSynced[id] == nil {
						t.Errorf("%s was not published before Synced", id)
					}
				}
			})
		})
	}
}
