package tracker

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestSliceZones(t *testing.T) {
	t.Run("each list is kept once", func(t *testing.T) {
		var endpoints []discoveryv1.Endpoint
		for i := range 100 {
			endpoints = append(endpoints, hintZones(pod(fmt.Sprint("10.0.0.", i+1), ""), []string{"a", "b"}[i%2]))
		}
		s := parseSlice(sliceOf(endpoints...), []string{thisNode}, false)
		if want := []hint{{zones: []string{"a"}}, {zones: []string{"b"}}}; !reflect.DeepEqual(s.hints, want) {
			t.Errorf("kept %v, want %v", s.hints, want)
		}
		for i := range s.endpoints {
			if got, want := s.candidate(i, 80, noNode).zones, []string{"a", "b"}[i%2]; !slices.Equal(got, []string{want}) {
				t.Errorf("endpoint %d is for zones %v, want %s", i, got, want)
			}
		}
	})
	t.Run("a hint for another zone is a change", func(t *testing.T) {
		near, far := pod("10.0.0.1", otherNode), pod("10.0.0.2", otherNode)
		tracker, _ := newSynced(makeService(), makeNode(thisNode, "a"), sliceOf(hintZones(near, "a"), hintZones(far, "b")))
		if got := texts(onePort(t, tracker).Cluster); !slices.Equal(got, []string{"10.0.0.1:8080"}) {
			t.Errorf("endpoints are %v", got)
		}
		tracker.SetEndpointSlice(sliceOf(hintZones(near, "c"), hintZones(far, "a")))
		if got := texts(onePort(t, tracker).Cluster); !slices.Equal(got, []string{"10.0.0.2:8080"}) {
			t.Errorf("endpoints are %v after the hints changed", got)
		}
		tracker.SetEndpointSlice(sliceOf(hintZones(near, "c"), hintZones(far, "b")))
		if got := texts(onePort(t, tracker).Cluster); !slices.Equal(got, []string{"10.0.0.1:8080", "10.0.0.2:8080"}) {
			t.Errorf("endpoints are %v without a hint for this zone", got)
		}
	})
}

// A large cluster has hundreds of thousands of endpoints. The collector walks lists that hold pointers.
func testSliceEndpointIsSmall(t *testing.T) {
	kind := reflect.TypeFor[sliceEndpoint]()
	if kind.Size() > 28 {
		t.Errorf("an endpoint takes %d bytes, want at most 28", kind.Size())
	}
	for i := range kind.NumField() {
		switch field := kind.Field(i); field.Type.Kind() {
		case reflect.Bool, reflect.Uint32, reflect.Array:
		default:
			t.Errorf("field %s of an endpoint is a %s, which may hold a pointer", field.Name, field.Type)
		}
	}
}
