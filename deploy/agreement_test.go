package deploy

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func TestChart(t *testing.T) {
	t.Run("makes the same objects as kustomize", testChartAndKustomizeMakeTheSameObjects)
	t.Run("has nothing for helm to complain about", testChartHasNothingForHelmToComplainAbout)
	t.Run("its notes name what was installed", testNotesNameWhatWasInstalled)
	t.Run("its README explains each value", testReadmeExplainsEachValue)
	t.Run("ports follow the configuration", testPortsFollowTheConfiguration)
	t.Run("monitoring has the labels by which prometheus finds it", testMonitoringHasTheLabelsByWhichPrometheusFindsIt)
	t.Run("the privileged container can be left out", testPrivilegedContainerCanBeLeftOut)
	t.Run("the seccomp profile can be chosen", testSeccompProfileCanBeChosen)
	t.Run("a changed configuration replaces the pods", testChangedConfigurationReplacesThePods)
	t.Run("the image can be chosen", testImageCanBeChosen)
}

func testChartAndKustomizeMakeTheSameObjects(t *testing.T) {
	v := monitored()
	delete(v["monitoring"].(values), "labels")
	fromChart := chart(t, v)
	fromKustomize := kustomize(t, "kustomize/overlays/standalone")
	maps.Copy(fromKustomize, kustomize(t, "chart/monitoring"))
	// The overlay as it stands leaves the metrics closed, as the chart does without monitoring.
	closed := configurationOf(t, chart(t, needed(values{})))
	if diff := cmp.Diff(configurationOf(t, fromKustomize), closed); diff != "" {
		t.Errorf("configuration (-kustomize +chart):\n%s", diff)
	}
	for _, key := range []string{"ConfigMap nftproxy-test", "Pod nftproxy-test"} { // of helm test
		delete(fromChart, key)
	}
	removeExpected(t, fromChart)
	removeExpected(t, fromKustomize)
	if diff := cmp.Diff(fromKustomize, fromChart, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-kustomize +chart):\n%s", diff)
	}
}

// configMapOf returns the ConfigMap that the DaemonSet mounts.
func configMapOf(t *testing.T, all objects) *corev1.ConfigMap {
	t.Helper()
	volumes := get[*appsv1.DaemonSet](t, all, "DaemonSet nftproxy").Spec.Template.Spec.Volumes
	return get[*corev1.ConfigMap](t, all, "ConfigMap "+volumes[0].ConfigMap.Name)
}

// configurationOf returns the contents of the files in the ConfigMap, without comments and order.
func configurationOf(t *testing.T, all objects) map[string]any {
	t.Helper()
	out := map[string]any{}
	for file, text := range configMapOf(t, all).Data {
		text = strings.ReplaceAll(text, unsetPodsRange, podsRange)
		var content any
		if err := yaml.UnmarshalStrict([]byte(text), &content); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out[file] = content
	}
	return out
}

// removeExpected removes the parts that differ by design: the ConfigMap, whose name in kustomize and whose
// checksum in the chart follow its content.
func removeExpected(t *testing.T, all objects) {
	t.Helper()
	set := get[*appsv1.DaemonSet](t, all, "DaemonSet nftproxy")
	delete(all, "ConfigMap "+configMapOf(t, all).Name)
	delete(set.Spec.Template.Annotations, "checksum/config")
	mounted := set.Spec.Template.Spec.Volumes[0].ConfigMap
	if !strings.HasPrefix(mounted.Name, "nftproxy") {
		t.Errorf("ConfigMap %s", mounted.Name)
	}
	mounted.Name = ""
}
