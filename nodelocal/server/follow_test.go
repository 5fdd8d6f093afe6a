package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodelocal"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	"github.com/nftproxy/nftproxy/tracker"
)

// cluster is the objects that exist.
type cluster struct {
	random   *rand.Rand
	services map[int]*corev1.Service
	slices   map[int]*discoveryv1.EndpointSlice
}

func newCluster(seed uint64) *cluster {
	return &cluster{rand.New(rand.NewPCG(seed, 1)), map[int]*corev1.Service{}, map[int]*discoveryv1.EndpointSlice{}}
}

// event changes one object, and tells sink.
func (c *cluster) event(sink tracker.Sink) {
	i := c.random.IntN(50)
	switch c.random.IntN(6) {
	case 0:
		c.services[i] = service(i)
		sink.SetService(c.services[i])
	case 1:
		delete(c.services, i)
		sink.DeleteService("default", fmt.Sprint("web-", i))
	case 2:
		delete(c.slices, i)
		sink.DeleteEndpointSlice("default", fmt.Sprint("web-", i, "-1"))
	default:
		c.slices[i] = slice(i, c.random.IntN(5), c.random.IntN(3))
		sink.SetEndpointSlice(c.slices[i])
	}
}

// truth returns the Changes that a tracker of the node alone makes of the objects.
func (c *cluster) truth(node string) *model.Changes {
	t := tracker.New(tracker.Options{NodeName: node})
	for _, s := range c.services {
		t.SetService(s)
	}
	for _, s := range c.slices {
		t.SetEndpointSlice(s)
	}
	t.Synced()
	return t.Changes()
}

func servingTracker(history int) *tracker.Tracker {
	return tracker.New(tracker.Options{EveryNode: true, History: history})
}

func TestRun(t *testing.T) {
	t.Run("agrees with the cluster when either side is killed", testRunWhenEitherSideIsKilled)
	t.Run("resumes", testRunResumes)
	t.Run("follows on when a stream ends for its age", testRunFollowsOn)
	t.Run("leaves a server that is not ready", testRunLeavesAServerThatIsNotReady)
	t.Run("carries trigger times", testRunCarriesTriggerTimes)
	t.Run("refuses a server of another proxy", testRunRefusesAServerOfAnotherProxy)
	t.Run("believes a server of a named proxy that has no Service", testRunOfANamedProxyWithoutServices)
}

func testRunWhenEitherSideIsKilled(t *testing.T) {
	const node = "node-1"
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			objects := newCluster(seed)
			tr := servingTracker(20)
			for range 50 {
				objects.event(tr)
			}
			tr.Synced()
			b := newTestServer(t, tr, server.Options{MinInterval: time.Millisecond})
			follower := &backend{}
			stop := follow(t, b.address, node, follower)
			for step := range 2500 {
				objects.event(tr)
				switch objects.random.IntN(250) {
				case 0: // the connection
					b.cut()
				case 1: // the server: another instance with other revisions, and what it learnt while it was away
					b.cut()
					b.end()
					objects.event(tr)
					b.start()
				case 2: // the backend, which loses its state
					stop()
					follower = &backend{}
					stop = follow(t, b.address, node, follower)
				case 3: // the backend's dataplane fails now and then
					failures := 0
					follower.mu.Lock()
					follower.fail = func() error {
						if failures++; failures%2 == 1 && failures < 6 {
							return errors.New("no")
						}
						return nil
					}
					follower.mu.Unlock()
				}
				if step%100 == 99 {
					time.Sleep(time.Millisecond)
				}
				if step%500 == 499 {
					want := objects.truth(node)
					eventually(t, func() string { return follower.difference(want) })
				}
			}
		})
	}
}

func testRunResumes(t *testing.T) {
	t.Parallel()
	tr := servingTracker(100)
	fill(tr, 100, 3)
	tr.Synced()
	b := newTestServer(t, tr, server.Options{})
	follower := &backend{}
	follow(t, b.address, "node-1", follower)
	synced := func(more int) func() string {
		return func() string {
			if syncs, changes := follower.counts(); syncs == 0 || changes < more {
				return fmt.Sprint(syncs, " Syncs, ", changes, " changes")
			}
			return ""
		}
	}
	eventually(t, synced(0))
	t.Run("without a full resend while the revision is known", func(t *testing.T) {
		for i := range 10 {
			b.cut()
			tr.SetEndpointSlice(slice(i, 2, 0))
			eventually(t, synced(i+1))
		}
		if n := b.fulls(); n != 1 {
			t.Errorf("%d full states were sent, want 1", n)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if n := len(b.conns); n < 11 {
			t.Errorf("%d connections, of which 10 were cut", n)
		}
	})
	t.Run("and another instance makes the backend do what changed", func(t *testing.T) {
		_, before := follower.counts()
		b.end()
		tr.SetEndpointSlice(slice(50, 2, 0))
		b.start()
		eventually(t, synced(before+1))
		if _, now := follower.counts(); now != before+1 {
			t.Errorf("%d changes, want 1", now-before)
		}
	})
}

func testRunFollowsOn(t *testing.T) {
	t.Parallel()
	tr := servingTracker(100)
	fill(tr, 100, 3)
	tr.SetNode(node("node-1"))
	tr.Synced()
	var mu sync.Mutex
	var fulls, resumed, longest int
	b := newTestServer(t, tr, server.Options{MaxAge: 2 * time.Second, Hooks: server.Hooks{OnBatch: func(full bool, bytes int, _ time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if full {
			fulls++
			return
		}
		resumed, longest = resumed+1, max(longest, bytes)
	}}})
	var log logLines
	var connected []bool
	follower := &backend{}
	followWith(t, b.address, follower, nodelocal.Options{Node: "node-1", Logger: log.logger(), OnConnected: func(yes bool) {
		mu.Lock()
		defer mu.Unlock()
		connected = append(connected, yes)
	}})
	eventually(t, func() string {
		mu.Lock()
		defer mu.Unlock()
		if resumed < 2 {
			return fmt.Sprintf("%d streams, want 2 more than one", resumed)
		}
		return ""
	})
	mu.Lock()
	if fulls != 1 || longest > 60 || !slices.Equal(connected, []bool{true}) || log.with("") != log.with("Connected") {
		t.Errorf("%d full states, up to %d bytes to resume, OnConnected %v, log %q; want 1, 60, true and nothing but Connected", fulls, longest, connected, log.text)
	}
	mu.Unlock()
	tr.SetEndpointSlice(slice(1, 2, 0))
	view := tr.View("node-1", 0)
	defer view.Close()
	want, _ := view.Take()
	eventually(t, func() string { return follower.difference(want) })
}

// Two servers are behind one address, as those of a Service are. The first connection
// leads to the one that knows nothing.
func testRunLeavesAServerThatIsNotReady(t *testing.T) {
	t.Parallel()
	ready := servingTracker(100)
	fill(ready, 10, 3)
	ready.Synced()
	waiting := servingTracker(100)
	waiting.Waiting("services: connection refused")
	var targets []string
	for _, tr := range []*tracker.Tracker{waiting, ready} {
		targets = append(targets, strings.TrimPrefix(newTestServer(t, tr, server.Options{}).address, "unix://"))
	}
	path := filepath.Join(private.Dir(t), "s")
	front, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	go func() {
		for i := 0; ; i++ {
			client, err := front.Accept()
			if err != nil {
				return
			}
			go relay(client, targets[i%len(targets)])
		}
	}()
	view := ready.View("node-1", 0)
	defer view.Close()
	want, _ := view.Take()
	for i := range 3 {
		var log logLines
		follower := &backend{}
		stop := followWith(t, "unix://"+path, follower, nodelocal.Options{Node: "node-1", Logger: log.logger()})
		eventually(t, func() string { return follower.difference(want) })
		stop()
		if refused := log.with("waits for services: connection refused"); refused != log.with("No connection") || i == 0 && refused == 0 {
			t.Errorf("the log does not say for what the server waits: %q", log.text)
		}
	}
}

// relay carries a connection to a unix socket.
func relay(client net.Conn, to string) {
	defer client.Close()
	upstream, err := net.Dial("unix", to)
	if err != nil {
		return
	}
	defer upstream.Close()
	go func() {
		_, _ = io.Copy(upstream, client)
		upstream.Close()
	}()
	_, _ = io.Copy(client, upstream)
}

// The times of events reach those who measure how long they take to be applied.
func testRunCarriesTriggerTimes(t *testing.T) {
	t.Parallel()
	tr := servingTracker(100)
	fill(tr, 10, 3)
	tr.Synced()
	b := newTestServer(t, tr, server.Options{})
	results := make(chan model.SyncResult, 100)
	follower := &backend{}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- nodelocal.Run(ctx, b.address, follower, nodelocal.Options{Node: "node-1", Loop: model.LoopOptions{OnSync: func(r model.SyncResult) { results <- r }}})
	}()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	trigger := func(i int) time.Time {
		when := time.Now().UTC().Round(0)
		s := slice(i, 2, 0)
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: when.Format(time.RFC3339Nano)}
		tr.SetEndpointSlice(s)
		return when
	}
	expect := func(t *testing.T, want ...time.Time) {
		t.Helper()
		var got []time.Time
		for len(got) < len(want) {
			select {
			case r := <-results:
				if r.Err == nil {
					got = append(got, r.Triggers...)
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("got %v, want %v", got, want)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if first := await.Receive(t, "the first Sync", results); len(first.Triggers) > 0 {
		t.Errorf("the full state came with %v", first.Triggers)
	}
	t.Run("with the changes that they led to", func(t *testing.T) {
		expect(t, trigger(1))
		expect(t, trigger(2))
	})
	t.Run("also those from while the connection was cut", func(t *testing.T) {
		b.cut()
		expect(t, trigger(3), trigger(4))
	})
	t.Run("and again with the Sync that succeeds", func(t *testing.T) {
		failures := 0
		follower.mu.Lock()
		follower.fail = func() error {
			if failures++; failures < 3 {
				return errors.New("no")
			}
			return nil
		}
		follower.mu.Unlock()
		expect(t, trigger(5))
	})
}

// named returns a tracker of the proxy with a service-proxy-name that has the Services with these numbers.
func named(name string, services ...int) *tracker.Tracker {
	tr := tracker.New(tracker.Options{EveryNode: true, ServiceProxyName: name, History: 100})
	for _, i := range services {
		s := service(i)
		if name != "" {
			s.Labels = map[string]string{tracker.LabelServiceProxyName: name}
		}
		tr.SetService(s)
	}
	tr.Synced()
	return tr
}

// replace starts a server of another tracker at the address.
func (b *testServer) replace(tr *tracker.Tracker) {
	b.end()
	b.tracker = tr
	b.start()
}

// services returns the names of the Services that the backend has, sorted, and the number of Syncs.
func (b *backend) services() (names string, syncs int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	if b.state != nil {
		for id := range b.state.Ports {
			all = append(all, id.Service)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " "), b.syncs
}

func (b *backend) awaitServices(t *testing.T, want string) {
	t.Helper()
	eventually(t, func() string {
		if got, syncs := b.services(); syncs == 0 || got != want {
			return fmt.Sprintf("the backend has %q after %d Syncs, want %q", got, syncs, want)
		}
		return ""
	})
}

func testRunRefusesAServerOfAnotherProxy(t *testing.T) {
	t.Parallel()
	for _, names := range []struct{ server, client string }{{"blue", ""}, {"", "blue"}, {"blue", "green"}} {
		want := fmt.Sprintf("the server's service-proxy-name is %q, the client's is %q", names.server, names.client)
		t.Run(fmt.Sprintf("a client %q without a state ends behind %q", names.client, names.server), func(t *testing.T) {
			b, backend := newTestServer(t, named(names.server, 1), server.Options{}), &backend{}
			ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
			defer stop()
			err := nodelocal.Run(ctx, b.address, backend, nodelocal.Options{Node: "node-1", ServiceProxyName: names.client})
			if !errors.Is(err, nodelocal.ErrServiceProxyName) || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want ErrServiceProxyName and %q", err, want)
			}
			if _, syncs := backend.services(); syncs > 0 {
				t.Errorf("the backend was called %d times", syncs)
			}
		})
		t.Run(fmt.Sprintf("a client %q with a state keeps it behind %q", names.client, names.server), func(t *testing.T) {
			b, backend := newTestServer(t, named(names.client, 1, 2), server.Options{}), &backend{}
			var log logLines
			var connected atomic.Bool
			followWith(t, b.address, backend, nodelocal.Options{
				Node: "node-1", ServiceProxyName: names.client, Logger: log.logger(), OnConnected: connected.Store,
			})
			backend.awaitServices(t, "web-1 web-2")
			b.replace(named(names.server, 3))
			refusal := strings.ReplaceAll(want, `"`, `\"`) // as the log quotes it
			eventually(t, func() string {
				if n := log.with(refusal); n < 2 {
					return fmt.Sprintf("%d lines of the log have %s, want at least 2", n, refusal)
				}
				return ""
			})
			if connected.Load() {
				t.Error("the client counts as connected")
			}
			if got, syncs := backend.services(); got != "web-1 web-2" || syncs != 1 {
				t.Errorf("the backend has %q after %d Syncs, want no Sync but the first", got, syncs)
			}
			b.replace(named(names.client, 2, 4))
			backend.awaitServices(t, "web-2 web-4")
		})
	}
}

// A cluster may have no Service for a proxy with a name, so the full state of its server may be empty.
func testRunOfANamedProxyWithoutServices(t *testing.T) {
	t.Parallel()
	b, backend := newTestServer(t, named("blue", 1), server.Options{}), &backend{}
	options := nodelocal.Options{Node: "node-1", ServiceProxyName: "blue", Guard: &model.ListGuard{
		Patience: time.Second, Before: func(string, bool) bool { return true },
	}}
	followWith(t, b.address, backend, options)
	backend.awaitServices(t, "web-1")
	b.replace(named("blue"))
	backend.awaitServices(t, "")
}
