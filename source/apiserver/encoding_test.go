package apiserver

import (
	"testing"

	"github.com/nftproxy/nftproxy/integration/await"
)

func TestAnswersAreProtobuf(t *testing.T) {
	forEachObedientServer(t, "tell how it answered", func(t *testing.T, c *cluster) {
		c.create(t, service("web"))
		sink := c.run(t)
		settled(t, c, sink)
		c.create(t, service("later"))
		await.True(t, "a Service through the watch", sink.has("services/default/later"))

		const accept = "application/vnd.kubernetes.protobuf,application/json"
		for _, resource := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
			for verb, want := range map[string]string{
				"list":  "application/vnd.kubernetes.protobuf",
				"watch": "application/vnd.kubernetes.protobuf;stream=watch",
			} {
				for _, r := range c.server.Requests(verb, resource) {
					if r.Accept != accept {
						t.Errorf("%s of %s accepts %q, want %q", verb, resource, r.Accept, accept)
					}
					if r.Status == 200 && r.ContentType != want {
						t.Errorf("%s of %s was answered in %q, want %q", verb, resource, r.ContentType, want)
					}
				}
			}
		}
	})
}

func TestJSONWorksToo(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *cluster) {
		c.create(t, service("web"))
		source, err := New(Config{Kubeconfig: c.kubeconfig, NodeName: thisNode, QPS: -1, ContentType: "application/json"})
		if err != nil {
			t.Fatal(err)
		}
		sink := c.run(t, func(s *Source) { *s = *source })
		await.True(t, "Synced", sink.synced)
		c.create(t, service("later"))
		await.True(t, "a Service through the watch", sink.has("services/default/later"))
		if c.server == nil {
			return
		}
		answered := false
		for _, r := range c.server.Requests("watch", "services") {
			answered = answered || r.ContentType == "application/json"
		}
		if !answered {
			t.Error("no watch was answered in JSON")
		}
	})
}
