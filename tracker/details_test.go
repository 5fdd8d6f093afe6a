package tracker

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/nftproxy/nftproxy/model"
)

func TestDetails(t *testing.T) {
	t.Run("are kept", testDetailsAreKept)
	t.Run("cost nothing unless asked for", testNoDetails)
	t.Run("leave out what cannot be sent", testDetailsThatCannotBeSent)
	t.Run("only selected labels and annotations are changes", testSelectedKeys)
	t.Run("views agree with the objects about the selected ones", testViewsAgreeAboutSelectedKeys)
}

// detailedObjects returns a Service and its slice with all that Options.Details keeps.
func detailedObjects() (*corev1.Service, *discoveryv1.EndpointSlice) {
	service := makeService(func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.Ports[0].AppProtocol = new("kubernetes.io/h2c")
		s.Labels = map[string]string{"tier": "front"}
		s.Annotations = map[string]string{"weight": "3", corev1.LastAppliedConfigAnnotation: "{}"}
	})
	bare, named, zoned := pod("10.1.0.1", thisNode), pod("10.1.0.2", otherNode), pod("10.1.0.3", otherNode)
	named.Hostname, named.Zone = new("web-0"), new("a")
	zoned.Zone = new("b")
	return service, sliceOf(bare, named, zoned)
}

func testDetailsAreKept(t *testing.T) {
	service, slice := detailedObjects()
	tracker := New(Options{NodeName: thisNode, Details: true})
	tracker.SetService(service)
	tracker.SetEndpointSlice(slice)
	tracker.Synced()
	got := onePort(t, tracker)
	if got.AppProtocol != "kubernetes.io/h2c" || got.ServiceType != model.TypeLoadBalancer {
		t.Errorf("application protocol %q, type %s", got.AppProtocol, got.ServiceType)
	}
	if diff := cmp.Diff(map[string]string{"tier": "front"}, got.ServiceLabels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"weight": "3"}, got.ServiceAnnotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	want := []model.EndpointInfo{{}, model.NewEndpointInfo("web-0", "a"), model.NewEndpointInfo("", "b")}
	for i, e := range got.Cluster {
		if e.Info != want[i] {
			t.Errorf("endpoint %s has %q, want %q", e.AddrPort, e.Info, want[i])
		}
	}
	for name, change := range map[string]func(){
		"the type":          func() { service.Spec.Type = corev1.ServiceTypeNodePort },
		"the app protocol":  func() { service.Spec.Ports[0].AppProtocol = nil },
		"a zone":            func() { slice.Endpoints[2].Zone = new("c") },
		"the last zone":     func() { slice.Endpoints[2].Zone = nil },
		"the other details": func() { slice.Endpoints[1].Zone, slice.Endpoints[1].Hostname = nil, nil },
	} {
		change()
		tracker.SetService(service)
		tracker.SetEndpointSlice(slice)
		if c := tracker.Changes(); c == nil || len(c.Ports) != 1 {
			t.Errorf("%s changed, and the tracker says %v", name, c)
		}
	}
}

func testNoDetails(t *testing.T) {
	service, slice := detailedObjects()
	tracker, _ := newSynced(service, slice)
	got := onePort(t, tracker)
	if got.AppProtocol != "" || got.ServiceType != 0 || got.ServiceLabels != nil || got.ServiceAnnotations != nil || got.Cluster[1].Info != (model.EndpointInfo{}) {
		t.Errorf("details are kept: %+v", got)
	}
	service.Labels["tier"], slice.Endpoints[1].Zone, service.Spec.Ports[0].AppProtocol = "back", new("c"), new("http")
	tracker.SetService(service)
	tracker.SetEndpointSlice(slice)
	if c := tracker.Changes(); c != nil {
		t.Errorf("changed details are changes: %v", c.Ports)
	}
}

func testDetailsThatCannotBeSent(t *testing.T) {
	service, slice := detailedObjects()
	service.Spec.Ports[0].AppProtocol = new("\xff")
	service.Labels = nil
	service.Annotations = map[string]string{
		"a-first": strings.Repeat("x", 4096), "long": strings.Repeat("x", 4097), "binary": "\xff", "\xff": "binary", "empty": "",
	}
	slice.Endpoints[1].Zone, slice.Endpoints[1].Hostname = new(strings.Repeat("z", 64)), new("\xff")
	tracker := New(Options{NodeName: thisNode, Details: true})
	tracker.SetService(service)
	tracker.SetEndpointSlice(slice)
	tracker.Synced()
	got := onePort(t, tracker)
	if got.AppProtocol != "" || got.ServiceLabels != nil || got.Cluster[1].Info != (model.EndpointInfo{}) {
		t.Errorf("kept: %q, %v, %q", got.AppProtocol, got.ServiceLabels, got.Cluster[1].Info)
	}
	if diff := cmp.Diff(map[string]string{"a-first": strings.Repeat("x", 4096), "empty": ""}, got.ServiceAnnotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	// One Service cannot have more than a bounded size of them.
	for i := range 100 {
		service.Annotations[strings.Repeat("k", i+1)] = strings.Repeat("x", 4000)
	}
	tracker.SetService(service)
	tracker.Resync()
	size := 0
	for key, value := range onePort(t, tracker).ServiceAnnotations {
		size += len(key) + len(value)
	}
	if size < 28<<10 || size > 32<<10 {
		t.Errorf("%d bytes of annotations are kept, want at most 32 KiB and most of that", size)
	}
}

func testSelectedKeys(t *testing.T) {
	service, slice := detailedObjects()
	tracker := New(Options{NodeName: thisNode, EveryNode: true, Details: true, ServiceKeys: model.ServiceKeys{Labels: []string{"tier"}}})
	tracker.SetService(service)
	tracker.SetEndpointSlice(slice)
	tracker.Synced()
	other := tracker.View("third", 0)
	defer other.Close()
	other.Select(model.ServiceKeys{Annotations: []string{"weight"}})
	tracker.Changes()
	other.Take()
	for _, tt := range []struct {
		name           string
		change         func()
		byOwn, byOther bool
	}{
		{"an own label", func() { service.Labels["tier"] = "back" }, true, false},
		{"an annotation of the other", func() { service.Annotations["weight"] = "4" }, false, true},
		{"one that nobody selected", func() { service.Annotations["x"], service.Labels["weight"] = "y", "5" }, false, false},
		{"a label that is gone", func() { delete(service.Labels, "tier") }, true, false},
		{"all annotations are gone", func() { service.Annotations = nil }, false, true},
	} {
		tt.change()
		tracker.SetService(service.DeepCopy())
		if got := tracker.Changes() != nil; got != tt.byOwn {
			t.Errorf("%s: the own view has changes: %t", tt.name, got)
		}
		if got, _ := other.Take(); (got != nil) != tt.byOther {
			t.Errorf("%s: the other view has changes: %v", tt.name, got)
		}
	}
}

// Views come and go with what they selected, take now and then, and end with what the Service has.
func testViewsAgreeAboutSelectedKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tracker := New(Options{EveryNode: true, History: 10, Details: true})
		service, slice := detailedObjects()
		tracker.SetEndpointSlice(slice)
		tracker.Synced()
		keys := []string{"tier", "weight", "x"}
		watchers := map[string]*watcher{thisNode: nil, "third": nil}
		for _, node := range []string{thisNode, "third"} {
			watchers[node] = &watcher{view: tracker.View(node, 0)}
			watchers[node].view.Select(model.ServiceKeys{Labels: keys[:1], Annotations: keys[1:2]})
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				w := watchers[rapid.SampledFrom([]string{thisNode, "third"}).Draw(t, "node")]
				w.take()
			case 1:
				node := rapid.SampledFrom([]string{thisNode, "third"}).Draw(t, "node")
				w := watchers[node]
				w.view.Close()
				w.view = tracker.View(node, w.revision)
				w.view.Select(model.ServiceKeys{Labels: keys[:1], Annotations: keys[1:2]})
			default:
				values := rapid.MapOf(rapid.SampledFrom(keys), rapid.SampledFrom([]string{"1", "2"}))
				service = service.DeepCopy()
				service.Labels, service.Annotations = values.Draw(t, "labels"), values.Draw(t, "annotations")
				tracker.SetService(service)
			}
		}
		tracker.SetService(service)
		for node, w := range watchers {
			w.take()
			if w.state == nil || len(w.state.Ports) != 1 {
				t.Fatalf("%s has %+v", node, w.state)
			}
			for _, port := range w.state.Ports {
				got := &model.ServicePort{ServiceLabels: port.ServiceLabels, ServiceAnnotations: port.ServiceAnnotations}
				want := &model.ServicePort{ServiceLabels: maps.Clone(service.Labels), ServiceAnnotations: maps.Clone(service.Annotations)}
				if !got.EqualFor(want, model.ServiceKeys{Labels: keys[:1], Annotations: keys[1:2]}) {
					t.Fatalf("%s has labels %v and annotations %v, the Service %v and %v", node, port.ServiceLabels, port.ServiceAnnotations, service.Labels, service.Annotations)
				}
			}
			w.view.Close()
		}
	})
}
