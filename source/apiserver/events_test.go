package apiserver

import (
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

		for id, remove := range map[string]func() error{
			"services/default/old": func() error {
				return c.client.CoreV1().Services("default").Delete(t.Context(), "old", metav1.DeleteOptions{})
			},
			"endpointslices/default/new-a": func() error {
				return c.client.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), "new-a", metav1.DeleteOptions{})
			},
			"nodes//" + thisNode: func() error {
				return c.client.CoreV1().Nodes().Delete(t.Context(), thisNode, metav1.DeleteOptions{})
			},
		} {
			if err := remove(); err != nil {
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
