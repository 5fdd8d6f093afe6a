package apiserver

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/tracker"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTrim(t *testing.T) {
	t.Run("keeps what is read", testTrimKeepsWhatIsRead)
	t.Run("keeps annotations of Services if asked", testTrimWithDetails)
}

func testTrimKeepsWhatIsRead(t *testing.T) {
	full := slice("a", "web")
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	full.Annotations = map[string]string{
		corev1.EndpointsLastChangeTriggerTime: "2024-01-02T03:04:05Z",
		corev1.LastAppliedConfigAnnotation:    "{}",
	}
	want := slice("a", "web")
	want.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2024-01-02T03:04:05Z"}

	for _, round := range []string{"first", "second"} {
		trim(full, true)
		if diff := cmp.Diff(want, full); diff != "" {
			t.Errorf("%s trim (-want +got):\n%s", round, diff)
		}
	}
}

func testTrimWithDetails(t *testing.T) {
	svc := service("web")
	svc.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	svc.Annotations = map[string]string{"example.com/weight": "3", tracker.AnnotationDirectReturn: "true"}
	want := service("web")
	want.Annotations = map[string]string{"example.com/weight": "3", tracker.AnnotationDirectReturn: "true"}
	trim(svc, true)
	if diff := cmp.Diff(want, svc); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want.Annotations = map[string]string{tracker.AnnotationDirectReturn: "true"}
	trim(svc, false)
	if diff := cmp.Diff(want, svc); diff != "" {
		t.Errorf("without details (-want +got):\n%s", diff)
	}
}

func testTrimmedObjectsArrive(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *cluster) {
		svc := service("web")
		svc.Annotations = map[string]string{"example.com/long": "text"}
		c.create(t, svc)
		sink := c.run(t)
		await.True(t, "Synced", sink.synced)
		got := sink.get("services/default/web")
		if got == nil || got.GetAnnotations() != nil || got.GetManagedFields() != nil {
			t.Errorf("the Service arrived as %v", got)
		}
	})
}
