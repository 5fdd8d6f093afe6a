package health_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nftproxy/nftproxy/internal/health"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/tracker"
)

const timeout = 20 * time.Second

var start = time.Date(2026, 7, 1, 3, 0, 0, 0, time.UTC)

func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	response, err := (&http.Client{Timeout: await.Patience}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// expectCodes asks both paths of p's server for their status code.
func expectCodes(t *testing.T, url string, healthz, livez int) {
	t.Helper()
	for path, want := range map[string]int{"/healthz": healthz, "/livez": livez} {
		if response, body := get(t, url+path); response.StatusCode != want {
			t.Errorf("%s = %d, want %d: %s", path, response.StatusCode, want, body)
		}
	}
}

func tainted(keys ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	for _, key := range keys {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	return node
}

func deleted() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", DeletionTimestamp: &metav1.Time{Time: start}}}
}

// change does something to a Proxy, and lets time pass.
type change func(p *health.Proxy, c *clocktesting.FakePassiveClock)

type probeCase struct {
	name           string
	do             change
	healthz, livez int
}

const ok, unavailable = http.StatusOK, http.StatusServiceUnavailable

// checkProbes asks a proxy, prepared by before and then by each case, for its health.
func checkProbes(t *testing.T, before func(*health.Proxy), cases []probeCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(start)
			p := health.NewProxy(health.Options{Timeout: timeout, Clock: clock})
			server := httptest.NewServer(p.Handler())
			defer server.Close()
			before(p)
			tc.do(p, clock)
			expectCodes(t, server.URL, tc.healthz, tc.livez)
		})
	}
}

func testProbesBeforeTheFirstSync(t *testing.T) {
	checkProbes(t, func(*health.Proxy) {}, []probeCase{
		{"nothing is programmed yet", func(*health.Proxy, *clocktesting.FakePassiveClock) {}, unavailable, ok},
		{"who never hears of anything is not ready, and a restart is no help", func(_ *health.Proxy, c *clocktesting.FakePassiveClock) {
			c.SetTime(start.Add(24 * time.Hour))
		}, unavailable, ok},
		{"a resource that cannot be watched is no reason to restart", func(p *health.Proxy, c *clocktesting.FakePassiveClock) {
			p.SetFailing("services", true)
			c.SetTime(start.Add(24 * time.Hour))
		}, unavailable, ok},
		{"the first sync may take a while", func(p *health.Proxy, c *clocktesting.FakePassiveClock) {
			p.Queued()
			c.SetTime(start.Add(timeout - 1))
		}, unavailable, ok},
		{"a first sync that never succeeds is stuck", func(p *health.Proxy, c *clocktesting.FakePassiveClock) {
			p.Queued()
			c.SetTime(start.Add(timeout))
		}, unavailable, unavailable},
		{"the first sync makes it ready", func(p *health.Proxy, _ *clocktesting.FakePassiveClock) {
			p.Queued()
			p.Synced()
		}, ok, ok},
		{"the first sync while the Node is waited for does not", func(p *health.Proxy, _ *clocktesting.FakePassiveClock) {
			p.AwaitNode(true)
			p.Queued()
			p.Synced()
		}, unavailable, ok},
	})
}

func testProbesWhileACommitIsUnderWay(t *testing.T) {
	begun := func(p *health.Proxy) {
		p.Queued()
		p.Committing(true)
	}
	checkProbes(t, begun, []probeCase{
		{"it is alive, though the change has waited for too long", func(_ *health.Proxy, c *clocktesting.FakePassiveClock) {
			c.SetTime(start.Add(29 * time.Minute))
		}, unavailable, ok},
		{"it is not for ever", func(_ *health.Proxy, c *clocktesting.FakePassiveClock) {
			c.SetTime(start.Add(30 * time.Minute))
		}, unavailable, unavailable},
		{"it is stuck if the commit has ended and no sync succeeds", func(p *health.Proxy, c *clocktesting.FakePassiveClock) {
			p.Committing(false)
			c.SetTime(start.Add(timeout))
		}, unavailable, unavailable},
		{"it is ready once the sync has succeeded", func(p *health.Proxy, c *clocktesting.FakePassiveClock) {
			c.SetTime(start.Add(5 * time.Minute))
			p.Committing(false)
			p.Synced()
		}, ok, ok},
		{"the next commit has as much time", func(p *health.Proxy, c *clocktesting.FakePassiveClock) {
			c.SetTime(start.Add(20 * time.Minute))
			p.Committing(false)
			p.Committing(true)
			c.SetTime(start.Add(40 * time.Minute))
		}, unavailable, ok},
	})
}

func TestProbes(t *testing.T) {
	t.Run("while a commit is under way", testProbesWhileACommitIsUnderWay)
	checkProbes(t, (*health.Proxy).Synced, []probeCase{
		{"while the Node is waited for, node ports may answer nowhere", func(p *health.Proxy, _ *clocktesting.FakePassiveClock) {
			p.AwaitNode(true)
		}, unavailable, ok},
		{"the Node is known, or given up", func(p *health.Proxy, _ *clocktesting.FakePassiveClock) {
			p.AwaitNode(true)
			p.AwaitNode(false)
		}, ok, ok},
		{"a resource that cannot be watched takes nothing away", func(p *health.Proxy, _ *clocktesting.FakePassiveClock) {
			p.SetFailing("services", true)
		}, ok, ok},
		{"a proxy that hears of no change stays healthy", func(p *health.Proxy, c *clocktesting.FakePassiveClock) {
			c.SetTime(start.Add(24 * time.Hour))
		}, ok, ok},
		{"a change may wait for a while", func(p *health.Proxy, c *clocktesting.FakePassiveClock) {
			p.Queued()
			c.SetTime(start.Add(timeout - 1))
		}, ok, ok},
		{"a change that waits for too long means that syncs are stuck", func(p *health.Proxy, c *clocktesting.FakePassiveClock) {
			p.Queued()
			c.SetTime(start.Add(timeout))
		}, unavailable, unavailable},
		{"the oldest change counts, however many follow", func(p *health.Proxy, c *clocktesting.FakePassiveClock) {
			p.Queued()
			c.SetTime(start.Add(timeout - 1))
			p.Queued()
			c.SetTime(start.Add(timeout))
		}, unavailable, unavailable},
		{"a sync in time resets the wait", func(p *health.Proxy, c *clocktesting.FakePassiveClock) {
			p.Queued()
			c.SetTime(start.Add(timeout - 1))
			p.Synced()
			p.Queued()
			c.SetTime(start.Add(2*timeout - 2))
		}, ok, ok},
		{"a late sync makes it healthy again", func(p *health.Proxy, c *clocktesting.FakePassiveClock) {
			p.Queued()
			c.SetTime(start.Add(10 * timeout))
			p.Synced()
		}, ok, ok},
		{"a Node being deleted sends load balancers away", func(p *health.Proxy, _ *clocktesting.FakePassiveClock) {
			p.SetNode(tracker.ParseNode(deleted()))
		}, unavailable, ok},
		{"a Node that the autoscaler removes sends load balancers away", func(p *health.Proxy, _ *clocktesting.FakePassiveClock) {
			p.SetNode(tracker.ParseNode(tainted("example.com/other", "ToBeDeletedByClusterAutoscaler")))
		}, unavailable, ok},
		{"other taints do not matter", func(p *health.Proxy, _ *clocktesting.FakePassiveClock) {
			p.SetNode(tracker.ParseNode(tainted("node.kubernetes.io/unschedulable")))
		}, ok, ok},
		{"a Node that stays after all is eligible again", func(p *health.Proxy, _ *clocktesting.FakePassiveClock) {
			p.SetNode(tracker.ParseNode(tainted("ToBeDeletedByClusterAutoscaler")))
			p.SetNode(tracker.ParseNode(tainted()))
		}, ok, ok},
	})
	t.Run("before the first Sync", testProbesBeforeTheFirstSync)
	t.Run("answer as kube-proxy does", testProbesAnswerAsKubeProxyDoes)
	t.Run("say what is wrong", testProbesSayWhatIsWrong)
	t.Run("say what the source waits for", testAnswersSayWhatTheSourceWaitsFor)
	t.Run("say what is held", testAnswersSayWhatIsHeld)
	t.Run("answers are counted", testAnswersAreCounted)
	t.Run("nodes of others do not count", testNodesOfOthersDoNotCount)
	t.Run("a deleted Node is not eligible", testDeletedNodeIsNotEligible)
}

// The bodies were recorded from kube-proxy v1.37.1; only the times are others.
func testProbesAnswerAsKubeProxyDoes(t *testing.T) {
	const (
		sync = `{"lastUpdated":"2026-07-01T03:00:05Z","healthy":true}`
		late = `{"lastUpdated":"2026-07-01T03:00:05Z","healthy":false}`
	)
	clock := clocktesting.NewFakePassiveClock(start)
	p := health.NewProxy(health.Options{Timeout: timeout, Clock: clock})
	server := httptest.NewServer(p.Handler())
	defer server.Close()
	expect := func(path, want string) {
		t.Helper()
		response, body := get(t, server.URL+path)
		if diff := cmp.Diff(want, body); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
		for header, want := range map[string]string{"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"} {
			if got := response.Header.Get(header); got != want {
				t.Errorf("%s: %s is %q, want %q", path, header, got, want)
			}
		}
	}

	p.Queued()
	clock.SetTime(start.Add(5 * time.Second))
	p.Synced()
	clock.SetTime(start.Add(7 * time.Second))
	expect("/healthz", `{"lastUpdated":"2026-07-01T03:00:07Z","currentTime":"2026-07-01T03:00:07Z","nodeEligible":true,"healthy":true,"status":{"IPv4":`+sync+`,"IPv6":`+sync+`}}`)
	expect("/livez", `{"lastUpdated":"2026-07-01T03:00:07Z","currentTime":"2026-07-01T03:00:07Z","healthy":true,"status":{"IPv4":`+sync+`,"IPv6":`+sync+`}}`)

	p.SetNode(tracker.ParseNode(deleted()))
	expect("/healthz", `{"lastUpdated":"2026-07-01T03:00:05Z","currentTime":"2026-07-01T03:00:07Z","nodeEligible":false,"healthy":true,"status":{"IPv4":`+sync+`,"IPv6":`+sync+`}}`)

	p.SetNode(tracker.ParseNode(tainted()))
	p.Queued()
	clock.SetTime(start.Add(time.Minute))
	expect("/healthz", `{"lastUpdated":"2026-07-01T03:00:05Z","currentTime":"2026-07-01T03:01:00Z","nodeEligible":true,"healthy":false,"status":{"IPv4":`+late+`,"IPv6":`+late+`}}`)
	expect("/livez", `{"lastUpdated":"2026-07-01T03:00:05Z","currentTime":"2026-07-01T03:01:00Z","healthy":false,"status":{"IPv4":`+late+`,"IPv6":`+late+`}}`)
}

func testProbesSayWhatIsWrong(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	p := health.NewProxy(health.Options{Timeout: timeout, Clock: clock})
	server := httptest.NewServer(p.Handler())
	defer server.Close()
	expect := func(path, want string) {
		t.Helper()
		if _, body := get(t, server.URL+path); body != want {
			t.Errorf("%s (-want +got):\n%s", path, cmp.Diff(want, body))
		}
	}
	const never = `"lastUpdated":"0001-01-01T00:00:00Z"`
	p.SetFailing("services", true)
	p.SetFailing("endpointslices", true)
	expect("/healthz", `{`+never+`,"currentTime":"2026-07-01T03:00:00Z","nodeEligible":true,"healthy":false,`+
		`"status":{"IPv4":{`+never+`,"healthy":false},"IPv6":{`+never+`,"healthy":false}},`+
		`"problems":["no sync has succeeded since the start","cannot watch endpointslices","cannot watch services"]}`)
	expect("/livez", `{"lastUpdated":"2026-07-01T03:00:00Z","currentTime":"2026-07-01T03:00:00Z","healthy":true,`+
		`"status":{"IPv4":{`+never+`,"healthy":true},"IPv6":{`+never+`,"healthy":true}},`+
		`"problems":["no sync has succeeded since the start","cannot watch endpointslices","cannot watch services"]}`)

	p.SetFailing("services", false)
	p.SetFailing("endpointslices", false)
	p.AwaitNode(true)
	p.Synced()
	const now = `{"lastUpdated":"2026-07-01T03:00:00Z","healthy":false}`
	expect("/healthz", `{"lastUpdated":"2026-07-01T03:00:00Z","currentTime":"2026-07-01T03:00:00Z","nodeEligible":true,"healthy":false,`+
		`"status":{"IPv4":`+now+`,"IPv6":`+now+`},"problems":["the Node is waited for"]}`)
}

func testAnswersAreCounted(t *testing.T) {
	var healthz, livez []int
	clock := clocktesting.NewFakePassiveClock(start)
	p := health.NewProxy(health.Options{
		Clock:     clock,
		OnHealthz: func(code int) { healthz = append(healthz, code) },
		OnLivez:   func(code int) { livez = append(livez, code) },
	})
	server := httptest.NewServer(p.Handler())
	defer server.Close()
	p.Synced()
	p.SetNode(tracker.ParseNode(deleted()))
	expectCodes(t, server.URL, http.StatusServiceUnavailable, http.StatusOK)
	p.Queued()
	clock.SetTime(start.Add(health.DefaultTimeout))
	expectCodes(t, server.URL, http.StatusServiceUnavailable, http.StatusServiceUnavailable)
	if diff := cmp.Diff([][]int{{503, 503}, {200, 503}}, [][]int{healthz, livez}); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

func testAnswersSayWhatTheSourceWaitsFor(t *testing.T) {
	p := health.NewProxy(health.Options{})
	server := httptest.NewServer(p.Handler())
	defer server.Close()
	next := tracker.New(tracker.Options{})
	sink := p.WatchNode("node-1", next)
	sink.Waiting("services: forbidden")
	const problem = `"waiting for services: forbidden"`
	for _, path := range []string{"/healthz", "/livez"} {
		if _, body := get(t, server.URL+path); !strings.Contains(body, problem) {
			t.Errorf("%s does not have %s:\n%s", path, problem, body)
		}
	}
	if got := next.WaitingFor(); got != "services: forbidden" {
		t.Errorf("the next sink waits for %q", got)
	}
	expectCodes(t, server.URL, http.StatusServiceUnavailable, http.StatusOK)
	sink.Synced()
	sink.Waiting("services: none at all") // is held then, which answers say in another way
	if _, body := get(t, server.URL+"/healthz"); strings.Contains(body, "waiting for") {
		t.Errorf("/healthz after Synced:\n%s", body)
	}
}

func testAnswersSayWhatIsHeld(t *testing.T) {
	held := []string{"endpointslices: the source has none", "services: the source has none"}
	p := health.NewProxy(health.Options{Held: func() []string { return held }})
	server := httptest.NewServer(p.Handler())
	defer server.Close()
	expectCodes(t, server.URL, http.StatusServiceUnavailable, http.StatusOK)
	p.Synced()
	expectCodes(t, server.URL, http.StatusOK, http.StatusOK)
	for _, path := range []string{"/healthz", "/livez"} {
		if _, body := get(t, server.URL+path); !strings.Contains(body, `"problems":["endpointslices: the source has none","services: the source has none"]`) {
			t.Errorf("%s does not say so:\n%s", path, body)
		}
	}
	held = nil
	if _, body := get(t, server.URL+"/healthz"); strings.Contains(body, "problems") {
		t.Errorf("/healthz still has problems:\n%s", body)
	}
}

// sinkStub remembers the Nodes that it was given.
type sinkStub struct {
	tracker.Sink
	nodes []string
}

func (s *sinkStub) SetNode(node *corev1.Node) { s.nodes = append(s.nodes, node.Name) }
func (s *sinkStub) DeleteNode(name string)    { s.nodes = append(s.nodes, "without "+name) }

// As in kube-proxy v1.37, a node whose Node was deleted gets no traffic from load balancers.
func testDeletedNodeIsNotEligible(t *testing.T) {
	p := health.NewProxy(health.Options{})
	server := httptest.NewServer(p.Handler())
	defer server.Close()
	p.Synced()
	var next sinkStub
	sink := p.WatchNode("node-1", &next)
	for range 2 {
		sink.SetNode(tainted())
		expectCodes(t, server.URL, http.StatusOK, http.StatusOK)
		sink.DeleteNode("node-1")
		expectCodes(t, server.URL, http.StatusServiceUnavailable, http.StatusOK)
		if _, body := get(t, server.URL+"/healthz"); !strings.Contains(body, `"nodeEligible":false,"healthy":true`) {
			t.Errorf("/healthz of a node that was deleted:\n%s", body)
		}
	}
	if diff := cmp.Diff([]string{"node-1", "without node-1", "node-1", "without node-1"}, next.nodes); diff != "" {
		t.Errorf("handed on (-want +got):\n%s", diff)
	}
}

func testNodesOfOthersDoNotCount(t *testing.T) {
	p := health.NewProxy(health.Options{})
	server := httptest.NewServer(p.Handler())
	defer server.Close()
	p.Synced()
	var next sinkStub
	sink := p.WatchNode("node-1", &next)

	other := tainted("ToBeDeletedByClusterAutoscaler")
	other.Name = "node-2"
	sink.SetNode(other)
	expectCodes(t, server.URL, http.StatusOK, http.StatusOK)
	sink.DeleteNode("node-2")
	expectCodes(t, server.URL, http.StatusOK, http.StatusOK)
	sink.SetNode(deleted())
	expectCodes(t, server.URL, http.StatusServiceUnavailable, http.StatusOK)
	if diff := cmp.Diff([]string{"node-2", "without node-2", "node-1"}, next.nodes); diff != "" {
		t.Errorf("handed on (-want +got):\n%s", diff)
	}
}

func TestServe(t *testing.T) {
	t.Run("ends with its context", testServeEndsWithItsContext)
	t.Run("tells when its listener breaks", testServeTellsWhenItsListenerBreaks)
}

func testServeEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- health.Serve(ctx, l, health.NewProxy(health.Options{}).Handler()) }()
	response, body := get(t, "http://"+l.Addr().String()+"/livez")
	if !json.Valid([]byte(body)) || response.StatusCode != http.StatusOK {
		t.Errorf("/livez = %d %s", response.StatusCode, body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve() = %v after its context ended", err)
	}
	if _, err := http.Get("http://" + l.Addr().String() + "/livez"); err == nil {
		t.Error("the server still answers")
	}
}

func testServeTellsWhenItsListenerBreaks(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := health.Serve(t.Context(), l, http.NotFoundHandler()); err == nil {
		t.Error("Serve() = nil on a closed listener")
	}
}
