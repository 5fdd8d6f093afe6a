package apiserver

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
)

func testServiceCIDRsMayBeRefused(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		status int
		logged string
		// fails says that health names the resource meanwhile.
		fails bool
	}{
		"not served":  {http.StatusNotFound, "does not have the resource", false},
		"not allowed": {http.StatusForbidden, "Not allowed to list and watch", true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			forEachObedientServer(t, "refuse a resource", func(t *testing.T, c *cluster) {
				c.create(t, service("web"), serviceCIDR("more", "10.97.0.0/16"))
				c.server.Refuse("servicecidrs", test.status)
				logs := &logLines{}
				health := &reports{}
				sink := c.runLogged(t, logs, pause(50*time.Millisecond), health.listen)
				await.True(t, "Synced without ServiceCIDRs", sink.synced)
				if sink.atSynced["services/default/web"] == nil {
					t.Error("the Service was not published before Synced")
				}
				// Asked for again, and again in vain, it is not logged again.
				await.True(t, "more attempts", func() bool { return len(c.server.Requests("", "servicecidrs")) >= 4 })
				if got := logs.count(test.logged, `"resource"="servicecidrs"`); got != 1 {
					t.Errorf("the refusal was logged %d times, want once:\n%s", got, logs)
				}
				if got := logs.count("Cannot watch"); got != 0 {
					t.Errorf("the refusal was logged as an outage too:\n%s", logs)
				}
				if got := slices.Contains(health.about("servicecidrs"), true); got != test.fails {
					t.Errorf("health was told of a failure: %v, want %v", got, test.fails)
				}

				c.server.Refuse("servicecidrs", 0)
				await.True(t, "the ServiceCIDR, once it is served", sink.has("servicecidrs//more"))
				if got := logs.count("serves the resource now"); got != 1 {
					t.Errorf("the end of the refusal was logged %d times, want once:\n%s", got, logs)
				}
				if sink.syncs != 1 {
					t.Errorf("Synced was called %d times, want once", sink.syncs)
				}
			})
		})
	}
}

func testServiceCIDRDeletedDuringARefusalGoes(t *testing.T) {
	forEachObedientServer(t, "refuse a resource", func(t *testing.T, c *cluster) {
		c.create(t, serviceCIDR("gone", "10.97.0.0/16"))
		sink := c.run(t, pause(50*time.Millisecond))
		awaitWatches(t, c, sink)
		c.server.Refuse("servicecidrs", http.StatusForbidden)
		c.server.Stop()
		if err := c.server.Resume(); err != nil {
			t.Fatal(err)
		}
		refusals := func() (n int) {
			for _, r := range c.server.Requests("", "servicecidrs") {
				if r.Status == http.StatusForbidden {
					n++
				}
			}
			return n
		}
		await.True(t, "a refusal", func() bool { return refusals() > 0 })
		if sink.get("servicecidrs//gone") == nil {
			t.Error("what was known was forgotten because it is refused now")
		}
		c.delete(t, serviceCIDR("gone", ""))
		c.server.Refuse("servicecidrs", 0)
		await.True(t, "the deletion", sink.lacks("servicecidrs//gone"))
	})
}

// A resource that is refused before and after an outage does not fail after it.
func testOutageDuringARefusalEnds(t *testing.T) {
	forEachObedientServer(t, "refuse a resource", func(t *testing.T, c *cluster) {
		c.server.Refuse("servicecidrs", http.StatusNotFound)
		logs, health := &logLines{}, &reports{}
		sink := c.runLogged(t, logs, pause(50*time.Millisecond), health.listen)
		await.True(t, "Synced", sink.synced)
		for outages := 1; outages <= 2; outages++ {
			c.server.Stop()
			await.True(t, "a failure", func() bool {
				return logs.count("Cannot list", `"resource"="servicecidrs"`) == outages && slices.Contains(health.about("servicecidrs"), true)
			})
			health.clear()
			if err := c.server.Resume(); err != nil {
				t.Fatal(err)
			}
			await.True(t, "the end of the failure", func() bool { return slices.Contains(health.about("servicecidrs"), false) })
			health.clear()
		}
	})
}

// A refused resource must not be asked for as often as one that fails: every node does.
func testRefusedResourceIsLeftAlone(t *testing.T) {
	forEachObedientServer(t, "refuse a resource", func(t *testing.T, c *cluster) {
		c.server.Refuse("servicecidrs", http.StatusNotFound)
		sink := c.run(t)
		await.True(t, "Synced", sink.synced)
		// Long enough for a reflector's back-off to have tried more than once.
		c.server.Refuse("nodes", http.StatusInternalServerError)
		c.server.DropConnections()
		before := len(c.server.Requests("list", "nodes"))
		await.True(t, "three more lists of what fails", func() bool {
			return len(c.server.Requests("list", "nodes")) >= before+3
		})
		if got := len(c.server.Requests("", "servicecidrs")); got != 1 {
			t.Errorf("a resource that is not served was asked for %d times, want once", got)
		}
	})
}

// pause shortens how long a refused resource is left alone.
func pause(d time.Duration) func(*Source) { return func(s *Source) { s.timing.refusal = d } }
