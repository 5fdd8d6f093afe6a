package apiserver

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/integration/await"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTrim(t *testing.T) {
	t.Run("keeps what is read", testTrimKeepsWhatIsRead)
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
		trim(full)
		if diff := cmp.Diff(want, full); diff != "" {
			t.Errorf("%s trim (-want +got):\n%s", round, diff)
		}
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
