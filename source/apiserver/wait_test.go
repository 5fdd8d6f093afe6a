package apiserver

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
)

// spoil makes a server fail for one resource in one of the ways in which servers fail.
var spoil = map[string]func(c *cluster, resource string){
	"internal error": func(c *cluster, resource string) { c.server.Refuse(resource, http.StatusInternalServerError) },
	"forbidden":      func(c *cluster, resource string) { c.server.Refuse(resource, http.StatusForbidden) },
	"overloaded":     func(c *cluster, resource string) { c.server.Refuse(resource, http.StatusTooManyRequests) },
	"no answer":      func(c *cluster, resource string) { c.server.Hang(resource) },
}

// impatient shortens all waits.
func impatient(s *Source) {
	s.timing = timing{node: time.Second, cidrs: 500 * time.Millisecond, silence: 2 * time.Second, refusal: 50 * time.Millisecond}
}

func mend(c *cluster, resource string) {
	c.server.Refuse(resource, 0)
	c.server.Answer(resource)
}

// reports collects what OnFailing is told.
type reports struct {
	mu  sync.Mutex
	all []string
}

func (r *reports) listen(s *Source) {
	s.config.OnFailing = func(resource string, failing bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, fmt.Sprintf("%s %v", resource, failing))
	}
}

// clear forgets the reports.
func (r *reports) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = nil
}

func (r *reports) about(resource string) (out []bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, failing := range []bool{true, false} {
		if slices.Contains(r.all, fmt.Sprintf("%s %v", resource, failing)) {
			out = append(out, failing)
		}
	}
	return out
}

func testFailingServiceCIDRsDelayNothing(t *testing.T) {
	t.Parallel()
	for name, spoil := range spoil {
		t.Run(name, func(t *testing.T) {
			forEachObedientServer(t, "fail for one resource", func(t *testing.T, c *cluster) {
				c.create(t, node(thisNode), service("web"), slice("web-a", "web"), serviceCIDR("more", "10.97.0.0/16"))
				spoil(c, "servicecidrs")
				reports, begin := &reports{}, time.Now()
				sink := c.run(t, reports.listen, impatient, func(s *Source) { s.timing.node = await.Patience })
				await.True(t, "Synced", sink.synced)
				if took := time.Since(begin); took > await.Patience/2 {
					t.Errorf("Synced after %v", took)
				}
				for _, id := range []string{"services/default/web", "endpointslices/default/web-a", "nodes//" + thisNode} {
					if sink.atSynced[id] == nil {
						t.Errorf("%s was not published before Synced", id)
					}
				}
				await.True(t, "the report of the failure", func() bool { return slices.Equal(reports.about("servicecidrs"), []bool{true}) })
				if got := reports.about("services"); got != nil {
					t.Errorf("Services were reported as failing: %v", got)
				}

				mend(c, "servicecidrs")
				await.True(t, "the ServiceCIDR, once it is served", sink.has("servicecidrs//more"))
				await.True(t, "the report of the end", func() bool { return slices.Equal(reports.about("servicecidrs"), []bool{true, false}) })
			})
		})
	}
}

func testFailingNodeIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	for name, spoil := range spoil {
		t.Run(name, func(t *testing.T) {
			forEachObedientServer(t, "fail for one resource", func(t *testing.T, c *cluster) {
				c.create(t, node(thisNode), service("web"), slice("web-a", "web"))
				spoil(c, "nodes")
				logs := &logLines{}
				begin := time.Now()
				sink := c.runLogged(t, logs, impatient)
				await.True(t, "Synced without the Node", sink.synced)
				if took := time.Since(begin); took < time.Second {
					t.Errorf("Synced after %v, want a second", took)
				}
				if got := logs.count("Going on without a resource that is not listed yet", `"resource"="nodes"`); got != 1 {
					t.Errorf("logged %d times, want once:\n%s", got, logs)
				}
				mend(c, "nodes")
				await.True(t, "the Node, once it is served", sink.has("nodes//"+thisNode))
			})
		})
	}
}

func testListThatIsNeverAnsweredIsLogged(t *testing.T) {
	forEachObedientServer(t, "leave a request without an answer", func(t *testing.T, c *cluster) {
		c.server.Hang("services")
		logs, reports := &logLines{}, &reports{}
		sink := c.runLogged(t, logs, reports.listen, impatient)
		await.True(t, "a line of the log", func() bool {
			return logs.count("Cannot list; programming nothing before it is listed", "no answer from the API server for 2s", `"resource"="services"`) == 1
		})
		if got := reports.about("services"); !slices.Equal(got, []bool{true}) {
			t.Errorf("reports %v, want one of a failure", got)
		}
		if got := logs.count("no answer", `"resource"="services"`); got != 1 {
			t.Errorf("%d lines about missing answers, want one:\n%s", got, logs)
		}
		if sink.synced() {
			t.Error("Synced without Services")
		}
		await.True(t, "the reason why it is not synced", func() bool { return sink.waitsFor("services: no answer from the API server for 2s") })
		c.server.Answer("services")
		await.True(t, "Synced", sink.synced)
		await.True(t, "the report of the end", func() bool { return slices.Equal(reports.about("services"), []bool{true, false}) })
	})
}
