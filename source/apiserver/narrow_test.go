package apiserver

import (
	"slices"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/tracker"
	corev1 "k8s.io/api/core/v1"
)

func testForeignAndHeadlessObjectsStayAtTheServer(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		proxyName  string
		arrive     []string
		stay       []string
		selector   string
		takenOver  string // a Service that becomes this proxy's own when its label is…
		takenLabel string // …set to this
	}{
		"without a name": {
			arrive:    []string{"services/default/plain", "endpointslices/default/plain-a", "endpointslices/default/mine-a"},
			stay:      []string{"services/default/mine", "services/default/other", "endpointslices/default/headless-a"},
			selector:  "!service.kubernetes.io/service-proxy-name",
			takenOver: "other",
		},
		"with a name": {
			proxyName: "mine",
			// A slice that does not carry its Service's label, as one written by hand, is needed.
			arrive:     []string{"services/default/mine", "endpointslices/default/mine-a", "endpointslices/default/mine-by-hand"},
			stay:       []string{"services/default/plain", "services/default/other", "endpointslices/default/headless-a"},
			selector:   "service.kubernetes.io/service-proxy-name=mine",
			takenOver:  "other",
			takenLabel: "mine",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			forEachServer(t, func(t *testing.T, c *cluster) {
				c.create(t,
					service("plain"), slice("plain-a", "plain"),
					service("mine", tracker.LabelServiceProxyName, "mine"),
					slice("mine-a", "mine", tracker.LabelServiceProxyName, "mine"), slice("mine-by-hand", "mine"),
					service("other", tracker.LabelServiceProxyName, "other"),
					slice("headless-a", "headless", corev1.IsHeadlessService, ""))
				sink := c.run(t, proxyName(test.proxyName))
				await.True(t, "Synced", sink.synced)
				for _, id := range test.arrive {
					if sink.atSynced[id] == nil {
						t.Errorf("%s did not arrive", id)
					}
				}

				c.create(t, service("other-2", tracker.LabelServiceProxyName, "other"),
					slice("headless-b", "headless", corev1.IsHeadlessService, ""), slice("last", "plain"))
				c.relabel(t, test.takenOver, tracker.LabelServiceProxyName, test.takenLabel)
				await.True(t, "a Service that is now this proxy's", sink.has("services/default/"+test.takenOver))
				await.True(t, "a slice created after the headless one", sink.has("endpointslices/default/last"))
				c.relabel(t, test.takenOver, tracker.LabelServiceProxyName, "somebody-else")
				await.True(t, "a Service to leave", sink.lacks("services/default/"+test.takenOver))

				stay := append(test.stay, "services/default/other-2", "endpointslices/default/headless-b")
				stay = slices.DeleteFunc(stay, func(id string) bool { return id == "services/default/"+test.takenOver })
				for _, id := range stay {
					if sink.seen(id) {
						t.Errorf("%s arrived", id)
					}
				}
				if c.server != nil {
					checkQueries(t, c, "services", "labelSelector", test.selector)
					checkQueries(t, c, "endpointslices", "labelSelector", "!service.kubernetes.io/headless")
					checkQueries(t, c, "nodes", "fieldSelector", "metadata.name="+thisNode)
				}
			})
		})
	}
}

// checkQueries looks at what was really sent: every list and watch carries the selector.
func checkQueries(t *testing.T, c *cluster, resource, option, want string) {
	t.Helper()
	requests := append(c.server.Requests("list", resource), c.server.Requests("watch", resource)...)
	if len(requests) == 0 {
		t.Errorf("no list or watch of %s", resource)
	}
	for _, r := range requests {
		if got := r.Query.Get(option); got != want {
			t.Errorf("%s of %s with %s %q, want %q", r.Verb, resource, option, got, want)
		}
	}
}
