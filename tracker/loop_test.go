package tracker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"pgregory.net/rapid"

	"github.com/nftproxy/nftproxy/model"
)

var errSync = errors.New("the kernel says no")

// fakeBackend applies changes to state, unless fail says otherwise.
type fakeBackend struct {
	// broken makes every Sync fail; fail, if set, is asked with the number of the call.
	broken atomic.Bool
	fail   func(call int) bool
	// takes is the duration of a Sync.
	takes time.Duration

	mu   sync.Mutex
	busy bool
	// called has the time of each call of Sync; applied has the merged Changes of the successful ones.
	called  []time.Time
	applied *model.Changes
}

// calls returns when Sync was called.
func (b *fakeBackend) calls() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.called)
}

// state returns what the backend has, nil before the first good Sync.
func (b *fakeBackend) state() *model.Changes {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.applied
}

// loseState makes the backend insist on a full Sync.
func (b *fakeBackend) loseState() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.applied = nil
}

func (b *fakeBackend) Sync(_ context.Context, changes *model.Changes) error {
	b.begin()
	time.Sleep(b.takes)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy = false
	if b.broken.Load() || b.fail != nil && b.fail(len(b.called)) {
		return errSync
	}
	if b.applied == nil {
		if !changes.Full {
			panic("the first Sync is not full")
		}
		b.applied = &model.Changes{}
	}
	b.applied.Merge(clone(changes))
	return nil
}

func (b *fakeBackend) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy {
		panic("Sync calls overlap")
	}
	b.busy = true
	b.called = append(b.called, time.Now())
}

// clone copies what Merge may change.
func clone(c *model.Changes) *model.Changes {
	copied := *c
	copied.Ports = map[model.PortID]*model.ServicePort{}
	for id, port := range c.Ports {
		copied.Ports[id] = port
	}
	return &copied
}

// runLoop runs a Loop in a synctest bubble until the test function ends.
func runLoop(t *testing.T, tracker *Tracker, backend model.Backend, options model.LoopOptions) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- model.NewLoop(tracker, backend, options).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
}

// since returns the times after start, rounded to milliseconds.
func since(start time.Time, times []time.Time) (passed []time.Duration) {
	for _, when := range times {
		passed = append(passed, when.Sub(start).Round(time.Millisecond))
	}
	return passed
}

func serviceNamed(name string) *corev1.Service {
	return makeService(func(s *corev1.Service) { s.Name = name })
}

// pass lets time pass and the Loop come to rest.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestLoop(t *testing.T) {
	t.Run("waits for synced", testLoopWaitsForSynced)
	t.Run("changes during a Sync are one next Sync", testChangesDuringASyncAreOneNextSync)
	t.Run("spaces Syncs by MinSyncPeriod", testMinSyncPeriodSpacesSyncs)
	t.Run("failed Syncs back off", testFailedSyncsBackOff)
	t.Run("new changes bring a retry forward without a hot loop", testNewChangesBringARetryForwardWithoutAHotLoop)
	t.Run("tells its hooks each step", testHooksTellTheStory)
	t.Run("a resync reaches the backend", testResyncReachesTheBackend)
	t.Run("failed Syncs lose nothing", testFailedSyncsLoseNothing)
}

func testLoopWaitsForSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, backend := New(Options{}), &fakeBackend{}
		runLoop(t, tracker, backend, model.LoopOptions{})
		tracker.SetService(makeService())
		pass(time.Hour)
		if len(backend.calls()) != 0 {
			t.Error("Sync was called before Synced")
		}
		tracker.Synced()
		synctest.Wait()
		if len(backend.calls()) != 1 || len(backend.state().Ports) != 1 {
			t.Errorf("%d calls of Sync, state %v", len(backend.calls()), backend.state())
		}
	})
}

func testChangesDuringASyncAreOneNextSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		tracker, _ := newSynced()
		backend := &fakeBackend{takes: time.Second}
		runLoop(t, tracker, backend, model.LoopOptions{})
		for _, name := range []string{"a", "b", "c", "d"} {
			pass(200 * time.Millisecond)
			tracker.SetService(serviceNamed(name))
		}
		pass(time.Minute)
		if diff := cmp.Diff([]time.Duration{0, time.Second}, since(start, backend.calls())); diff != "" {
			t.Errorf("Sync calls (-want +got):\n%s", diff)
		}
		if len(backend.state().Ports) != 4 {
			t.Errorf("the backend has %d ports, want 4", len(backend.state().Ports))
		}
	})
}

func testMinSyncPeriodSpacesSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		tracker, _ := newSynced()
		backend := &fakeBackend{}
		runLoop(t, tracker, backend, model.LoopOptions{MinSyncPeriod: 10 * time.Second})
		pass(time.Second)
		tracker.SetService(serviceNamed("a"))
		pass(time.Second)
		tracker.SetService(serviceNamed("b"))
		pass(time.Minute)
		tracker.SetService(serviceNamed("c")) // after a long rest there is no delay
		pass(time.Minute)
		want := []time.Duration{0, 10 * time.Second, 62 * time.Second}
		if diff := cmp.Diff(want, since(start, backend.calls())); diff != "" {
			t.Errorf("Sync calls (-want +got):\n%s", diff)
		}
	})
}

func testFailedSyncsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		tracker, _ := newSynced(makeService())
		backend := &fakeBackend{}
		backend.broken.Store(true)
		var retries []time.Duration
		runLoop(t, tracker, backend, model.LoopOptions{OnSync: func(r model.SyncResult) {
			if r.Err == nil {
				return
			}
			retries = append(retries, r.RetryIn)
		}})
		pass(2*time.Minute - time.Nanosecond)
		ms, s := time.Millisecond, time.Second
		if diff := cmp.Diff([]time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 12800 * ms, 25600 * ms, 30 * s, 30 * s, 30 * s}, retries); diff != "" {
			t.Errorf("waits (-want +got):\n%s", diff)
		}
		if got := backend.calls()[10].Sub(start); got != 81100*ms {
			t.Errorf("try 11 came after %v", got)
		}
		backend.broken.Store(false)
		pass(time.Minute)
		if backend.state() == nil || len(backend.state().Ports) != 1 {
			t.Fatal("the retry did not bring the changes")
		}
		t.Log("after a success the next failure starts at the beginning")
		backend.broken.Store(true)
		tracker.SetService(serviceNamed("other"))
		pass(0)
		if got := retries[len(retries)-1]; got != 100*ms {
			t.Errorf("the wait is %v, want 100ms", got)
		}
	})
}

func testNewChangesBringARetryForwardWithoutAHotLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, _ := newSynced(makeService())
		backend := &fakeBackend{}
		backend.broken.Store(true)
		runLoop(t, tracker, backend, model.LoopOptions{})
		pass(2 * time.Minute) // the wait is 30 s now
		failures := len(backend.calls())

		t.Log("one change is tried after a tenth of the wait")
		last := backend.calls()[failures-1]
		tracker.SetService(serviceNamed("cure"))
		pass(3 * time.Second)
		if diff := cmp.Diff([]time.Duration{max(3*time.Second, time.Since(last)-3*time.Second)}, since(last, backend.calls()[failures:])); diff != "" {
			t.Errorf("tries (-want +got):\n%s", diff)
		}

		t.Log("a stream of changes is tried every 3 s, not every time")
		failures = len(backend.calls())
		for i := range 6000 {
			pass(10 * time.Millisecond)
			tracker.SetService(makeService(func(s *corev1.Service) { s.Spec.Ports[0].Port = int32(1 + i%2) }))
		}
		if tries := len(backend.calls()) - failures; tries < 15 || tries > 20 {
			t.Errorf("%d tries in a minute, want about 20", tries)
		}

		t.Log("and the cure works")
		backend.broken.Store(false)
		pass(30 * time.Second)
		if len(backend.state().Ports) != 2 {
			t.Errorf("the backend has %d ports, want 2", len(backend.state().Ports))
		}
	})
}

func testHooksTellTheStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, _ := newSynced()
		backend := &fakeBackend{takes: time.Second}
		backend.broken.Store(true)
		queued := 0
		var results []model.SyncResult
		trigger := time.Now().Add(time.Millisecond)
		slice := sliceOf(pod("10.0.0.1", ""))
		slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: trigger.Format(time.RFC3339Nano)}
		tracker.SetService(makeService())
		tracker.SetEndpointSlice(slice)
		runLoop(t, tracker, backend, model.LoopOptions{
			OnQueued: func() { queued++ },
			OnSync:   func(r model.SyncResult) { results = append(results, r) },
		})
		pass(1050 * time.Millisecond)
		backend.broken.Store(false)
		pass(time.Minute)
		if queued != 1 || len(results) != 2 {
			t.Fatalf("queued %d times, %d results, want 1 and 2", queued, len(results))
		}
		for i, r := range results {
			if r.Duration != time.Second || len(r.Changes.Ports) != 1 || len(r.Triggers) != 1 || !r.Triggers[0].Equal(trigger) {
				t.Errorf("result %d is %+v", i, r)
			}
		}
		if results[0].Err == nil || results[1].Err != nil || results[1].RetryIn != 0 {
			t.Errorf("errors are %v and %v", results[0].Err, results[1].Err)
		}
	})
}

func testResyncReachesTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, _ := newSynced(makeService())
		backend := &fakeBackend{}
		runLoop(t, tracker, backend, model.LoopOptions{})
		synctest.Wait()
		backend.loseState()
		tracker.Resync()
		synctest.Wait()
		if backend.state() == nil || len(backend.state().Ports) != 1 {
			t.Errorf("state after resync is %v", backend.state())
		}
	})
}

func testFailedSyncsLoseNothing(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		failures := rapid.SliceOfN(rapid.Bool(), 20, 20).Draw(r, "failures")
		pauses := rapid.SliceOfN(rapid.IntRange(0, 5000), 25, 25).Draw(r, "pauses")
		var got, want *model.Changes
		synctest.Test(t, func(t *testing.T) {
			tracker := New(Options{NodeName: thisNode})
			backend := &fakeBackend{takes: 300 * time.Millisecond}
			backend.fail = func(call int) bool { return call <= len(failures) && failures[call-1] }
			runLoop(t, tracker, backend, model.LoopOptions{})
			g := generator{map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}, map[string]*networkingv1.ServiceCIDR{}, nil}
			for i, pause := range pauses {
				if i == 3 {
					tracker.Synced()
				}
				g.event(r, tracker)
				pass(time.Duration(pause) * time.Millisecond)
			}
			pass(time.Hour)
			fresh, _ := newSynced(g.objects(1)...)
			got, want = backend.state(), fresh.Changes()
		})
		if diff := cmp.Diff(want, got, sameAddrs); diff != "" {
			r.Fatalf("the backend's state (-want +got):\n%s", diff)
		}
	})
}
