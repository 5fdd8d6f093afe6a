package deploy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// daemonSets are all ways to run the proxy.
func daemonSets(t *testing.T) map[string]*appsv1.DaemonSet {
	t.Helper()
	return map[string]*appsv1.DaemonSet{
		"the chart":                 get[*appsv1.DaemonSet](t, chart(t, monitored()), "DaemonSet nftproxy"),
		"kustomize":                 get[*appsv1.DaemonSet](t, kustomize(t, "kustomize/overlays/standalone"), "DaemonSet nftproxy"),
		"in the place of kubeadm's": get[*appsv1.DaemonSet](t, kustomize(t, "kustomize/overlays/kubeadm"), "DaemonSet kube-proxy"),
	}
}

func TestDaemonSet(t *testing.T) {
	t.Run("runs with no privilege but NET_ADMIN", testProxyRunsWithNoPrivilegeButNetAdmin)
	t.Run("finds its pods", testDaemonSetFindsItsPods)
	t.Run("its pods use the ServiceAccount that has the role", testPodsUseTheServiceAccountThatHasTheRole)
	t.Run("Prometheus finds its pods", testPrometheusFindsThePods)
}

func testProxyRunsWithNoPrivilegeButNetAdmin(t *testing.T) {
	want := &corev1.SecurityContext{
		Privileged:               new(false),
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		RunAsUser:                new(int64(0)),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	for name, set := range daemonSets(t) {
		spec := set.Spec.Template.Spec
		if len(spec.Containers) != 1 || spec.SecurityContext != nil || spec.HostPID || spec.HostIPC {
			t.Errorf("%s: %d containers, pod security context %v", name, len(spec.Containers), spec.SecurityContext)
		}
		if diff := cmp.Diff(want, spec.Containers[0].SecurityContext); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(lockVolume, spec.Volumes[1]); len(spec.Volumes) != 2 || spec.Volumes[0].ConfigMap == nil || diff != "" {
			t.Errorf("%s: the volumes are %v, want a ConfigMap and the lock (-want +got):\n%s", name, spec.Volumes, diff)
		}
	}
}

func testDaemonSetFindsItsPods(t *testing.T) {
	for name, set := range daemonSets(t) {
		if !selects(t, set.Spec.Selector, set) {
			t.Errorf("%s: selector %v, labels of the pods %v", name, set.Spec.Selector, set.Spec.Template.Labels)
		}
	}
}

func testPodsUseTheServiceAccountThatHasTheRole(t *testing.T) {
	for name, all := range map[string]objects{"the chart": chart(t, monitored()), "kustomize": kustomize(t, "kustomize/overlays/standalone")} {
		account := get[*corev1.ServiceAccount](t, all, "ServiceAccount nftproxy")
		binding := get[*rbacv1.ClusterRoleBinding](t, all, "ClusterRoleBinding nftproxy")
		want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}
		if diff := cmp.Diff(want, binding.Subjects); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
		get[*rbacv1.ClusterRole](t, all, "ClusterRole "+binding.RoleRef.Name)
		set := get[*appsv1.DaemonSet](t, all, "DaemonSet nftproxy")
		if got := set.Spec.Template.Spec.ServiceAccountName; got != account.Name || set.Namespace != account.Namespace {
			t.Errorf("%s: the pods use %s/%s", name, set.Namespace, got)
		}
	}
}

func testPrometheusFindsThePods(t *testing.T) {
	monitor := get[*monitoringv1.PodMonitor](t, kustomize(t, "chart/monitoring"), "PodMonitor nftproxy")
	for name, set := range daemonSets(t) {
		if !selects(t, &monitor.Spec.Selector, set) || set.Namespace != monitor.Namespace {
			t.Errorf("%s: selector %v, labels of the pods %v", name, monitor.Spec.Selector, set.Spec.Template.Labels)
		}
		if got := set.Spec.Template.Labels[monitor.Spec.JobLabel]; got != "kube-proxy" {
			t.Errorf("%s: job %q, want the one that alerts and dashboard ask for", name, got)
		}
		if got, want := set.Spec.Template.Spec.Containers[0].Ports[0].Name, *monitor.Spec.PodMetricsEndpoints[0].Port; got != want {
			t.Errorf("%s: port %s, want %s", name, got, want)
		}
	}
}

func selects(t *testing.T, selector *metav1.LabelSelector, set *appsv1.DaemonSet) bool {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return s.Matches(labels.Set(set.Spec.Template.Labels))
}
