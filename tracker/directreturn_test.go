package tracker

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDirectReturn(t *testing.T) {
	const zone = "a"
	for _, tt := range []struct {
		name, annotation string
		off              bool
		edit             func(*corev1.Service)
		want             bool
		skipped          skips
	}{
		{name: "is asked for by an annotation", annotation: "true", want: true},
		{name: "does not apply without the option", annotation: "true", off: true},
		{name: "does not apply to other Services", annotation: ""},
		{name: "may be refused", annotation: "false"},
		{name: "names another value", annotation: "yes", skipped: skips{"Service malformed": 1}},
		{
			name: "does not apply to policy Local", annotation: "true", skipped: skips{"Service malformed": 1},
			edit: func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal },
		},
		{
			name: "applies to session affinity too", annotation: "true", want: true,
			edit: func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
		},
		{
			name: "does not apply to a Service without external addresses", annotation: "true",
			edit: func(s *corev1.Service) { s.Spec.ExternalIPs = nil },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			skipped := skips{}
			tracker := New(Options{NodeName: thisNode, DirectReturn: !tt.off, OnSkip: skipped.count})
			service := makeService(func(s *corev1.Service) {
				s.Spec.ExternalIPs = []string{"203.0.113.1"}
				s.UID, s.CreationTimestamp = "3f6c", metav1.Unix(7, 0)
				if tt.annotation != "" {
					s.Annotations = map[string]string{AnnotationDirectReturn: tt.annotation}
				}
				if tt.edit != nil {
					tt.edit(s)
				}
			})
			set(tracker, makeNode(thisNode, zone))
			set(tracker, service)
			set(tracker, sliceOf(hintZones(pod("10.0.0.1", thisNode), zone), hintZones(pod("10.0.0.2", otherNode), "b"), pod("10.0.0.3", otherNode, "!ready", "serving", "terminating")))
			tracker.Synced()
			port := onePort(t, tracker)
			if port.DirectReturn != tt.want {
				t.Errorf("direct return is %v, want %v", port.DirectReturn, tt.want)
			}
			if c := port.Creation; (c != nil) != tt.want || c != nil && (c.UID != "3f6c" || c.Time.Unix() != 7) {
				t.Errorf("the Service was created at %v", c)
			}
			// All nodes need one list, so topology does not apply.
			cluster := []string{"10.0.0.1:8080 local"}
			if tt.want {
				cluster = append(cluster, "10.0.0.2:8080")
			}
			if diff := cmp.Diff(cluster, texts(port.Cluster)); diff != "" {
				t.Errorf("cluster list (-want +got):\n%s", diff)
			}
			// Old connections stay with an endpoint that terminates.
			terminating := netip.MustParseAddrPort("10.0.0.3:8080")
			if got := slices.Contains(port.Serving, terminating); got != tt.want {
				t.Errorf("the endpoint that terminates is among those that serve: %v, want %v", got, tt.want)
			}
			if want := tt.skipped; len(want)+len(skipped) > 0 {
				if diff := cmp.Diff(want, skipped); diff != "" {
					t.Errorf("skipped (-want +got):\n%s", diff)
				}
			}
		})
	}
}
