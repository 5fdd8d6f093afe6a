package tracker

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestCounts(t *testing.T) {
	tr := New(Options{})
	service := makeService(func(*corev1.Service) {})
	slice := makeSlice(func(*discoveryv1.EndpointSlice) {})
	steps := []struct {
		name string
		do   func()
		want Counts
	}{
		{"nothing yet", func() {}, Counts{}},
		{"a Service", func() { tr.SetService(service) }, Counts{Services: 1, PendingServices: 1}},
		{"the same Service again counts, but changes nothing", func() { tr.SetService(service) }, Counts{Services: 2, PendingServices: 1}},
		{"a slice", func() { tr.SetEndpointSlice(slice) }, Counts{Services: 2, EndpointSlices: 1, PendingServices: 1, PendingEndpointSlices: 1}},
		{"the same slice again", func() { tr.SetEndpointSlice(slice) }, Counts{Services: 2, EndpointSlices: 2, PendingServices: 1, PendingEndpointSlices: 1}},
		{"what cannot be published yet stays pending", func() { tr.Changes() }, Counts{Services: 2, EndpointSlices: 2, PendingServices: 1, PendingEndpointSlices: 1}},
		{"published", func() { tr.Synced(); tr.Changes() }, Counts{Services: 2, EndpointSlices: 2}},
		{"deletions", func() {
			tr.DeleteService(service.Namespace, service.Name)
			tr.DeleteEndpointSlice(slice.Namespace, slice.Name)
		}, Counts{Services: 3, EndpointSlices: 3, PendingServices: 1, PendingEndpointSlices: 1}},
		{"deletions of what is not there", func() {
			tr.DeleteService(service.Namespace, service.Name)
			tr.DeleteEndpointSlice(slice.Namespace, slice.Name)
		}, Counts{Services: 4, EndpointSlices: 4, PendingServices: 1, PendingEndpointSlices: 1}},
		{"published again", func() { tr.Changes() }, Counts{Services: 4, EndpointSlices: 4}},
	}
	for _, step := range steps {
		step.do()
		if diff := cmp.Diff(step.want, tr.Counts()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}
