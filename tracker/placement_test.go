package tracker

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestEndpointPlacement(t *testing.T) {
	none := pod("10.0.0.1", "")
	empty := pod("10.0.0.1", "")
	empty.NodeName = new("")
	for _, tt := range []struct {
		name, nodeName string
		endpoint       discoveryv1.Endpoint
		local, remote  bool
	}{
		{"on this node", thisNode, pod("10.0.0.1", thisNode), true, false},
		{"on another node", thisNode, pod("10.0.0.1", otherNode), false, true},
		{"without a node", thisNode, none, false, false},
		{"with an empty node", thisNode, empty, false, false},
		{"for a proxy that does not know its node", "", pod("10.0.0.1", otherNode), false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tracker := New(Options{NodeName: tt.nodeName})
			tracker.SetService(makeService())
			tracker.SetEndpointSlice(sliceOf(tt.endpoint))
			tracker.Synced()
			for id, port := range tracker.Changes().Ports {
				if len(port.Cluster) != 1 || port.Cluster[0].Local != tt.local || port.Cluster[0].Remote != tt.remote {
					t.Errorf("%v has %+v, want local %v and remote %v", id, port.Cluster, tt.local, tt.remote)
				}
			}
		})
	}
	t.Run("a slice that begins to name the node is a change", func(t *testing.T) {
		tracker, _ := newSynced(makeService(), sliceOf(none))
		tracker.Changes()
		tracker.SetEndpointSlice(sliceOf(pod("10.0.0.1", otherNode)))
		if changes := tracker.Changes(); changes == nil || len(changes.Ports) != 1 {
			t.Errorf("changes are %+v, want one port", changes)
		}
	})
}
