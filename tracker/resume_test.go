package tracker

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"
)

// testResumedViewsAgreeWithFreshOnes changes few objects in few ways, so that they often go and come back as they were.
func testResumedViewsAgreeWithFreshOnes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tracker := New(Options{EveryNode: true, History: rapid.SampledFrom([]int{1, 2, 100}).Draw(t, "history")})
		tracker.Synced()
		w := &watcher{view: tracker.View(thisNode, 0)}
		w.take()
		open := true
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				if open {
					w.take()
				}
			case 1:
				w.view.Close()
				open = false
			case 2:
				w.view.Close()
				w.view, open = tracker.View(thisNode, w.revision), true
			default:
				drawFewChanges(t, tracker)
			}
		}
		w.view.Close()
		w.view = tracker.View(thisNode, w.revision)
		for range rapid.IntRange(0, 8).Draw(t, "changes before the first take") {
			drawFewChanges(t, tracker)
		}
		w.take()
		w.expectFresh(t)
	})
}

// drawFewChanges changes one of a few objects.
func drawFewChanges(t *rapid.T, tracker *Tracker) {
	name := rapid.SampledFrom([]string{"web", "dns"}).Draw(t, "service")
	switch rapid.IntRange(0, 9).Draw(t, "event") {
	case 0, 1:
		s := serviceNamed(name)
		if rapid.Bool().Draw(t, "other port") {
			s.Spec.Ports[0].Name = "other"
		}
		tracker.SetService(s)
	case 2, 3:
		tracker.DeleteService("default", name)
	case 4, 5:
		s := makeSlice(func(s *discoveryv1.EndpointSlice) {
			s.Name, s.Labels[discoveryv1.LabelServiceName] = name, name
			s.Endpoints = []discoveryv1.Endpoint{
				hintZones(pod("10.0.0.1", rapid.SampledFrom([]string{thisNode, otherNode}).Draw(t, "pod's node")), "a"),
				hintZones(pod("10.0.0.2", otherNode), "b"),
			}
		})
		tracker.SetEndpointSlice(s)
	case 6:
		tracker.DeleteEndpointSlice("default", name)
	case 7:
		tracker.SetNode(makeNode(thisNode, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone"), func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.2"}).Draw(t, "ip")}}
		}))
	case 8:
		tracker.DeleteNode(thisNode)
	case 9:
		if tracker.DeleteServiceCIDR("main"); rapid.Bool().Draw(t, "cidr stays") {
			tracker.SetServiceCIDR(makeServiceCIDR("main", "10.96.0.0/16"))
		}
	}
}

// expectFresh compares what the watcher has with what a view that begins now gets.
func (w *watcher) expectFresh(t rapid.TB) {
	t.Helper()
	fresh := w.view.tracker.View(w.view.name, 0)
	defer fresh.Close()
	want, _ := fresh.Take()
	if diff := cmp.Diff(want, w.state, sameAddrs); diff != "" {
		t.Fatalf("(-fresh +resumed):\n%s", diff)
	}
}

// testResumeAcrossForgottenDeletions forgets deletions between View and the first take.
func testResumeAcrossForgottenDeletions(t *testing.T) {
	for _, tc := range []struct {
		name   string
		forget func(*Tracker)
	}{
		{"of many ports of one Service", func(tracker *Tracker) {
			for i := range 20 {
				tracker.SetService(serviceWithPort(fmt.Sprint("p", i)))
			}
		}},
		{"of many Services", func(tracker *Tracker) {
			tracker.DeleteService("default", "web")
			other := tracker.View("other", 0)
			for i := range 20 {
				tracker.SetService(serviceNamed(fmt.Sprint("short-", i)))
				tracker.DeleteService("default", fmt.Sprint("short-", i))
			}
			other.Take()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := New(Options{EveryNode: true, History: 10})
			tracker.SetService(serviceNamed("stays"))
			tracker.SetService(serviceWithPort("first"))
			tracker.Synced()
			w := &watcher{view: tracker.View(thisNode, 0)}
			w.take()
			w.view.Close()
			// The client has port "first". Whoever resumes cannot know it from the tracker.
			tracker.SetService(serviceWithPort("second"))
			w.view = tracker.View(thisNode, w.revision)
			tc.forget(tracker)
			w.take()
			w.expectFresh(t)
		})
	}
}

// serviceWithPort returns Service default/web with one named port.
func serviceWithPort(name string) *corev1.Service {
	return makeService(func(s *corev1.Service) { s.Spec.Ports[0].Name = name })
}

// testResumeAfterAnIdenticalPort is the shortest history of its kind.
func testResumeAfterAnIdenticalPort(t *testing.T) {
	tracker := New(Options{EveryNode: true, History: 10})
	tracker.SetService(makeService())
	tracker.Synced()
	w := &watcher{view: tracker.View(thisNode, 0)}
	w.take()
	w.view.Close()
	w.view = tracker.View(thisNode, w.revision)
	tracker.DeleteService("default", "web")
	tracker.SetService(makeService())
	w.take()
	w.expectFresh(t)
}
