package apiserver

import (
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"k8s.io/client-go/rest"
)

func testChangesArrive(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *cluster) {
		c.create(t, service("old"))
		sink := c.run(t)
		await.True(t, "Synced", sink.synced)

		c.create(t, service("new"), slice("new-a", "new"), node(thisNode), serviceCIDR("more", "10.98.0.0/16"))
		for _, id := range []string{"services/default/new", "endpointslices/default/new-a", "nodes//" + thisNode, "servicecidrs//more"} {
			await.True(t, id+" to arrive", sink.has(id))
		}

		c.relabel(t, "old", "step", "2")
		await.True(t, "the update", sink.labelled("services/default/old", "2"))

		for id, request := range map[string]*rest.Request{
			"services/default/old":         c.collections.Services.client.Delete().Namespace("default").Resource("services").Name("old"),
			"endpointslices/default/new-a": c.collections.EndpointSlices.client.Delete().Namespace("default").Resource("endpointslices").Name("new-a"),
			"nodes//" + thisNode:           c.collections.Nodes.client.Delete().Resource("nodes").Name(thisNode),
		} {
			if err := request.Do(t.Context()).Error(); err != nil {
				t.Fatal(err)
			}
			await.True(t, id+" to go", sink.lacks(id))
		}
		if sink.get("services/default/new") == nil {
			t.Error("a Service that was not deleted is gone")
		}
		if sink.syncs != 1 {
			t.Errorf("Synced was called %d times, want once", sink.syncs)
		}
	})
}
