package tracker

import (
	"fmt"
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

// watcher is somebody who follows one node through views, as a client of a server does.
type watcher struct {
	view     *View
	state    *model.Changes
	revision uint64
}

func (w *watcher) take() {
	changes, _, revision, _ := w.view.TakeRevision()
	w.revision = revision
	if changes == nil {
		return
	}
	if w.state == nil {
		w.state = &model.Changes{}
	}
	w.state.Merge(changes)
}

// expectTruth compares what a watcher has with what a Tracker of that node alone says.
func expectTruth(t *rapid.T, cluster *generator, node string, state *model.Changes, nodes map[string]*corev1.Node) {
	truth := New(Options{NodeName: node})
	for _, obj := range cluster.objects(1) {
		set(truth, obj)
	}
	if n := nodes[node]; n != nil {
		truth.SetNode(n)
	}
	truth.Synced()
	if diff := cmp.Diff(truth.Changes(), state, sameAddrs); diff != "" {
		t.Fatalf("node %s (-alone +view):\n%s", node, diff)
	}
}

func TestView(t *testing.T) {
	t.Run("views agree with a tracker of their node", testViewsAgreeWithATrackerOfTheirNode)
	t.Run("resumes", testViewResume)
	t.Run("resumed views agree with fresh ones", testResumedViewsAgreeWithFreshOnes)
	t.Run("resumes across forgotten deletions", testResumeAcrossForgottenDeletions)
	t.Run("keeps a port that went and came back before the first take", testResumeAfterAnIdenticalPort)
	t.Run("without one deleted Services are forgotten", testNoViewKeepsNothingGrowing)
	t.Run("tells how much a take is", testViewBehind)
	t.Run("one that nobody asks does not grow", testViewThatNobodyAsksKeepsNothingGrowing)
	t.Run("views share lists", testViewsShareLists)
	t.Run("views of different zones do not share lists", testViewsOfDifferentZones)
}

func testViewsAgreeWithATrackerOfTheirNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history := rapid.SampledFrom([]int{0, 1, 100}).Draw(t, "history")
		shared := New(Options{EveryNode: true, History: history})
		cluster := &generator{map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}, map[string]*networkingv1.ServiceCIDR{}, nil}
		nodes := map[string]*corev1.Node{}
		watchers := map[string]*watcher{}
		names := []string{thisNode, otherNode, "third"}
		if rapid.Bool().Draw(t, "synced early") {
			shared.Synced()
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "node")
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0: // somebody begins, or takes
				w := watchers[name]
				if w == nil {
					w = &watcher{view: shared.View(name, 0)}
					watchers[name] = w
				}
				w.take()
			case 1: // a connection breaks, and is there again
				if w := watchers[name]; w != nil {
					w.view.Close()
					w.view = shared.View(name, w.revision)
				}
			case 2:
				n := makeNode(name, rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "zone"))
				n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.2"}).Draw(t, "ip")}}
				nodes[name] = n
				shared.SetNode(n)
			default:
				cluster.event(t, sinkWithoutNodes{shared})
				cluster.node = nil
			}
		}
		shared.Synced()
		for name, w := range watchers {
			w.take()
			expectTruth(t, cluster, name, w.state, nodes)
			w.take()
			w.view.Close()
		}
		if len(shared.views) != 0 {
			t.Fatal("views are left")
		}
		if n := len(shared.changes.gone); n > history {
			t.Fatalf("%d lost ports are remembered", n)
		}
	})
}

// sinkWithoutNodes keeps Nodes for the test to set.
type sinkWithoutNodes struct{ *Tracker }

func (sinkWithoutNodes) SetNode(*corev1.Node) {}

func testViewResume(t *testing.T) {
	begin := func() (*Tracker, *watcher) {
		tracker := New(Options{EveryNode: true, History: 10})
		for i := range 5 {
			tracker.SetService(serviceNamed(fmt.Sprint("web-", i)))
		}
		tracker.Synced()
		w := &watcher{view: tracker.View("n", 0)}
		w.take()
		w.view.Close()
		return tracker, w
	}
	t.Run("without a change there is nothing new but the node", func(t *testing.T) {
		tracker, w := begin()
		changes, _ := tracker.View("n", w.revision).Take()
		if changes != nil && (changes.Full || len(changes.Ports) > 0) {
			t.Errorf("got %+v", changes)
		}
	})
	t.Run("what changed comes, and what went", func(t *testing.T) {
		tracker, w := begin()
		tracker.SetService(serviceNamed("new"))
		tracker.DeleteService("default", "web-1")
		changes, _ := tracker.View("n", w.revision).Take()
		if changes.Full || len(changes.Ports) != 2 {
			t.Errorf("got %+v", changes)
		}
	})
	t.Run("the last ServiceCIDR that went comes as none", func(t *testing.T) {
		tracker, w := begin()
		tracker.SetServiceCIDR(makeServiceCIDR("main", "10.96.0.0/16"))
		w.view = tracker.View("n", w.revision)
		w.take()
		w.view.Close()
		tracker.DeleteServiceCIDR("main")
		changes, _ := tracker.View("n", w.revision).Take()
		if changes == nil || !changes.ServiceCIDRsChanged || len(changes.ServiceCIDRs) > 0 {
			t.Errorf("got %+v", changes)
		}
	})
	t.Run("after more deletions than are remembered everything comes", func(t *testing.T) {
		tracker, w := begin()
		for i := range 20 {
			tracker.SetService(serviceNamed(fmt.Sprint("short-", i)))
			tracker.DeleteService("default", fmt.Sprint("short-", i))
		}
		other := &watcher{view: tracker.View("m", 0)}
		other.take()
		if changes, _ := tracker.View("n", w.revision).Take(); !changes.Full {
			t.Errorf("got %+v", changes)
		}
	})
	t.Run("a revision of the future is none", func(t *testing.T) {
		tracker, w := begin()
		if changes, _ := tracker.View("n", w.revision+1).Take(); !changes.Full {
			t.Errorf("got %+v", changes)
		}
	})
}

// A server may be without clients for long.
func testNoViewKeepsNothingGrowing(t *testing.T) {
	const history, deleted = 10, 1000
	tracker := New(Options{EveryNode: true, History: history})
	for i := range deleted {
		name := fmt.Sprint("goes-", i)
		tracker.SetService(serviceNamed(name))
		tracker.SetEndpointSlice(makeSlice(func(s *discoveryv1.EndpointSlice) { s.Name, s.Labels[discoveryv1.LabelServiceName] = name, name }))
	}
	tracker.Synced()
	for i := range deleted {
		tracker.DeleteService("default", fmt.Sprint("goes-", i))
		tracker.DeleteEndpointSlice("default", fmt.Sprint("goes-", i))
	}
	if entries, gone := len(tracker.entries), len(tracker.changes.gone); entries > 0 || gone > history {
		t.Errorf("%d entries and %d ports of %d deleted Services are kept, want 0 and %d", entries, gone, deleted, history)
	}
}

func testViewThatNobodyAsksKeepsNothingGrowing(t *testing.T) {
	tracker := New(Options{EveryNode: true})
	stalled := &watcher{view: tracker.View("stalled", 0)}
	tracker.SetService(serviceNamed("stays"))
	tracker.Synced()
	stalled.take()
	reader := &watcher{view: tracker.View("reads", 0)}
	for i := range 1000 {
		name := fmt.Sprint("goes-", i)
		tracker.SetService(serviceNamed(name))
		tracker.DeleteService("default", name)
		if i == 10 {
			tracker.DeleteService("default", "stays")
		}
		if i%100 == 0 {
			reader.take()
		}
	}
	if n := len(tracker.entries) + len(stalled.view.removed) + len(stalled.view.published); n > 2 {
		t.Errorf("%d deleted Services are kept", n)
	}
	stalled.take()
	if n := len(stalled.state.Ports); n != 0 {
		t.Errorf("the one that read nothing has %d ports", n)
	}
}

func testViewBehind(t *testing.T) {
	tracker := New(Options{EveryNode: true, History: 1})
	for i := range 10 {
		tracker.SetService(serviceNamed(fmt.Sprint("web-", i)))
	}
	w := &watcher{view: tracker.View("n", 0)}
	expect := func(when string, want int) {
		t.Helper()
		if got := w.view.Behind(); got != want {
			t.Errorf("%s: behind by %d, want %d", when, got, want)
		}
	}
	expect("before Synced", 0)
	tracker.Synced()
	expect("before the first take", 10)
	w.take()
	expect("after it", 0)
	tracker.DeleteService("default", "web-1")
	expect("after a change", 1)
	w.take()
	w.view.Close()
	w.view = tracker.View("n", w.revision)
	expect("when it resumes", 0)
	w.view.Close()
	for i := range 3 {
		tracker.DeleteService("default", fmt.Sprint("web-", 2+i))
	}
	w.view = tracker.View("n", w.revision)
	expect("when deletions were forgotten", len(tracker.entries))
	w.take()
	for i := range 5 {
		tracker.DeleteService("default", fmt.Sprint("web-", 5+i))
	}
	expect("when more Services were deleted than are left", 5)
	w.take()
	tracker.SetService(serviceNamed("web-0"))
	tracker.DeleteService("default", "web-0")
	w.take()
	tracker.SetService(serviceNamed("web-1"))
	w.take()
	w.view.Close()
	tracker.DeleteService("default", "web-1")
	w.view = tracker.View("n", w.revision)
	expect("when it resumes before the deletion of the last Service", 1)
}

// Watchers share what is the same for them: memory follows what is particular to a node.
func testViewsShareLists(t *testing.T) {
	tracker := New(Options{EveryNode: true})
	tracker.SetService(makeService())
	tracker.SetEndpointSlice(sliceOf(pod("10.0.0.1", thisNode), pod("10.0.0.2", "")))
	tracker.Synced()
	port := func(node string) *model.ServicePort {
		changes, _ := tracker.View(node, 0).Take()
		return portsOf(t, changes)[0]
	}
	if port("a") != port("b") {
		t.Error("two nodes without an endpoint do not share")
	}
	if !port(thisNode).Cluster[0].Local || port("a").Cluster[0].Local || !port("a").Cluster[0].Remote {
		t.Error("the node with the endpoint is not told apart")
	}
}

func TestViewTriggers(t *testing.T) {
	begin := func() *Tracker {
		tracker := New(Options{EveryNode: true, History: 10})
		tracker.SetService(makeService())
		tracker.Synced()
		return tracker
	}
	expect := func(t *testing.T, who string, v *View, want ...time.Time) (revision uint64) {
		t.Helper()
		_, got, revision, _ := v.TakeRevision()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", who, diff)
		}
		return revision
	}
	at := func(tracker *Tracker, i int) time.Time {
		return tracker.started.Add(time.Duration(i) * time.Minute).UTC().Round(0)
	}
	t.Run("each view gets each time once", func(t *testing.T) {
		tracker := begin()
		a, b := tracker.View("a", 0), tracker.View("b", 0)
		expect(t, "a", a)
		triggered(tracker, 1, at(tracker, 1))
		expect(t, "a", a, at(tracker, 1))
		triggered(tracker, 2, at(tracker, 2))
		expect(t, "a", a, at(tracker, 2))
		expect(t, "b, which was slow,", b, at(tracker, 1), at(tracker, 2))
		expect(t, "a", a)
	})
	t.Run("a view that begins with everything gets none from before", func(t *testing.T) {
		tracker := begin()
		defer tracker.View("other", 0).Close()
		triggered(tracker, 1, at(tracker, 1))
		v := tracker.View("a", 0)
		triggered(tracker, 2, at(tracker, 2))
		expect(t, "a", v, at(tracker, 2))
	})
	t.Run("a view that resumes gets those since", func(t *testing.T) {
		tracker := begin()
		v, other := tracker.View("a", 0), tracker.View("other", 0)
		triggered(tracker, 1, at(tracker, 1))
		revision := expect(t, "a", v, at(tracker, 1))
		v.Close()
		triggered(tracker, 2, at(tracker, 2))
		expect(t, "other", other, at(tracker, 1), at(tracker, 2))
		expect(t, "a", tracker.View("a", revision), at(tracker, 2))
	})
	t.Run("a view that takes nothing keeps the oldest, and makes room when it goes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tracker := begin()
			stuck, v := tracker.View("stuck", 0), tracker.View("a", 0)
			for i := range model.MaxTriggers + 10 {
				triggered(tracker, i, at(tracker, 1))
			}
			if _, times := v.Take(); len(times) != model.MaxTriggers {
				t.Errorf("%d times, want %d", len(times), model.MaxTriggers)
			}
			triggered(tracker, 1, at(tracker, 2))
			expect(t, "a", v)
			stuck.Close()
			triggered(tracker, 2, at(tracker, 3))
			expect(t, "a", v, at(tracker, 3))
		})
	})
}

// None of the nodes has an endpoint, so views share the Service's ports, but by zone.
func testViewsOfDifferentZones(t *testing.T) {
	tracker := New(Options{EveryNode: true})
	tracker.SetService(makeService())
	tracker.SetEndpointSlice(sliceOf(hintZones(pod("10.0.0.1", otherNode), "a"), hintZones(pod("10.0.0.2", otherNode), "b")))
	tracker.SetNode(makeNode("in-a", "a"))
	tracker.SetNode(makeNode("in-b", "b"))
	tracker.Synced()
	for node, want := range map[string]string{"in-a": "10.0.0.1:8080", "in-b": "10.0.0.2:8080"} {
		changes, _, _, _ := tracker.View(node, 0).TakeRevision()
		for _, port := range changes.Ports {
			if got := texts(port.Cluster); len(got) != 1 || got[0] != want {
				t.Errorf("node %s reaches %v, want %s", node, got, want)
			}
		}
		if len(changes.Ports) != 1 {
			t.Errorf("node %s has %d ports", node, len(changes.Ports))
		}
	}
}
