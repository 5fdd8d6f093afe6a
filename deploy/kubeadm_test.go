package deploy

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

func TestKubeadmOverlay(t *testing.T) {
	t.Run("takes kubeadm's privileges away", testOverlayTakesKubeadmsPrivilegesAway)
}

func testOverlayTakesKubeadmsPrivilegesAway(t *testing.T) {
	live := objects{}
	data, err := os.ReadFile("testdata/kubeadm-daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := live.addDocuments(data); err != nil {
		t.Fatal(err)
	}
	before := get[*appsv1.DaemonSet](t, live, "DaemonSet kube-proxy")
	overlay := daemonSets(t)["in the place of kubeadm's"]
	after := applied(t, before, overlay)

	// A selector cannot be changed.
	if diff := cmp.Diff(before.Spec.Selector, after.Spec.Selector); diff != "" {
		t.Errorf("selector (-before +after):\n%s", diff)
	}
	// Mounts and volumes of kubeadm that apply does not know of stay. Nothing else does.
	got, want := after.Spec.Template.Spec, overlay.Spec.Template.Spec
	ignored := cmp.Options{
		cmpopts.IgnoreFields(corev1.PodSpec{}, "Volumes"),
		cmpopts.IgnoreFields(corev1.Container{}, "VolumeMounts"),
		cmpopts.IgnoreFields(corev1.ObjectFieldSelector{}, "APIVersion"),
	}
	if diff := cmp.Diff(want, got, ignored); diff != "" {
		t.Errorf("pods (-overlay +applied):\n%s", diff)
	}
	if after.Namespace != before.Namespace || got.ServiceAccountName != before.Spec.Template.Spec.ServiceAccountName {
		t.Errorf("namespace %s, service account %s, want kubeadm's", after.Namespace, got.ServiceAccountName)
	}
	if got, want := got.Containers[0].Command, before.Spec.Template.Spec.Containers[0].Command; !cmp.Equal(got, want) {
		t.Errorf("command %v, want kubeadm's %v", got, want)
	}
}

// applied returns the result of `kubectl apply` of wanted on live, an object that it did not create.
func applied(t *testing.T, live, wanted *appsv1.DaemonSet) *appsv1.DaemonSet {
	t.Helper()
	current, err := json.Marshal(live)
	if err != nil {
		t.Fatal(err)
	}
	modified, err := json.Marshal(wanted)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := strategicpatch.NewPatchMetaFromStruct(live)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := strategicpatch.CreateThreeWayMergePatch([]byte("{}"), modified, current, schema, true)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := strategicpatch.StrategicMergePatch(current, patch, live)
	if err != nil {
		t.Fatal(err)
	}
	var out appsv1.DaemonSet
	if err := json.Unmarshal(merged, &out); err != nil {
		t.Fatal(err)
	}
	return &out
}
