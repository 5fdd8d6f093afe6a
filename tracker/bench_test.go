package tracker

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// fillCluster sets services Services with a slice of endpoints each.
func fillCluster(tracker Sink, services, endpoints int) {
	for i := range services {
		tracker.SetService(makeService(func(s *corev1.Service) {
			s.Name = fmt.Sprint("web-", i)
			s.Spec.ClusterIPs = []string{fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255)}
		}))
		tracker.SetEndpointSlice(numberedSlice(i, endpoints))
	}
}

func numberedSlice(service, endpoints int) *discoveryv1.EndpointSlice {
	return makeSlice(func(s *discoveryv1.EndpointSlice) {
		s.Name = fmt.Sprint("web-", service, "-1")
		s.Labels[discoveryv1.LabelServiceName] = fmt.Sprint("web-", service)
		for i := range endpoints {
			s.Endpoints = append(s.Endpoints, pod(fmt.Sprintf("10.%d.%d.%d", i, service>>8, service&255), thisNode))
		}
	})
}

func BenchmarkColdStart(b *testing.B) {
	for b.Loop() {
		tracker := New(Options{NodeName: thisNode})
		fillCluster(tracker, 10000, 2)
		tracker.Synced()
		if got := len(tracker.Changes().Ports); got != 10000 {
			b.Fatalf("%d ports", got)
		}
	}
}

// BenchmarkHeap reports how much memory a Tracker keeps when it has published everything, the lists that a Backend
// shares included.
func BenchmarkHeap(b *testing.B) {
	for _, size := range []struct {
		name                string
		services, endpoints int
		details             bool
	}{{"10000x2", 10000, 2, false}, {"5000x50", 5000, 50, false}, {"10000x2 with details", 10000, 2, true}, {"5000x50 with details", 5000, 50, true}} {
		b.Run(size.name, func(b *testing.B) {
			for b.Loop() {
				before := liveHeap()
				tracker := New(Options{NodeName: thisNode, Details: size.details})
				fillCluster(withDetails{tracker}, size.services, size.endpoints)
				tracker.Synced()
				tracker.Changes()
				b.ReportMetric(float64(liveHeap()-before)/1e6, "MB-kept")
				runtime.KeepAlive(tracker)
			}
		})
	}
}

// withDetails adds to objects what most have of what Options.Details keeps. Their texts
// are their own, as a decoder makes them.
type withDetails struct{ Sink }

func (w withDetails) SetService(s *corev1.Service) {
	s.Spec.Ports[0].AppProtocol = new(strings.Clone("http"))
	s.Labels, s.Annotations = map[string]string{}, map[string]string{}
	for _, key := range []string{"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/part-of", "app.kubernetes.io/managed-by"} {
		s.Labels[strings.Clone(key)] = strings.Clone(s.Name)
	}
	for _, key := range []string{"example.com/owner", "example.com/contact"} {
		s.Annotations[strings.Clone(key)] = strings.Clone("somebody@example.com")
	}
	w.Sink.SetService(s)
}

func (w withDetails) SetEndpointSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Endpoints {
		s.Endpoints[i].Zone = new(strings.Clone("europe-west1-b"))
	}
	w.Sink.SetEndpointSlice(s)
}

// liveHeap returns how many bytes are in use after a collection.
func liveHeap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func BenchmarkOneChangeAmong(b *testing.B) {
	for _, services := range []int{100, 10000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			tracker := New(Options{NodeName: thisNode})
			fillCluster(tracker, services, 2)
			tracker.Synced()
			tracker.Changes()
			few, many := numberedSlice(7, 2), numberedSlice(7, 3)
			for b.Loop() {
				tracker.SetEndpointSlice(many)
				one := tracker.Changes()
				tracker.SetEndpointSlice(few)
				two := tracker.Changes()
				if len(one.Ports) != 1 || len(two.Ports) != 1 {
					b.Fatal("not one change each")
				}
			}
		})
	}
}
