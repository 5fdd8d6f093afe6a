package deploy

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	helmchart "helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
)

// expectRefusal renders the chart and expects an error with a text.
func expectRefusal(t *testing.T, v values, want string) {
	t.Helper()
	if _, err := renderChart(v); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pattern") {
		t.Errorf("error %v, want one with %q and without a regular expression", err, want)
	}
	if errors := lintErrors(v); !slices.ContainsFunc(errors, func(m string) bool { return strings.Contains(m, want) }) {
		t.Errorf("helm lint has the errors %q, want one with %q", errors, want)
	}
}

// lintErrors returns what helm lint fails for.
func lintErrors(v values) (out []string) {
	for _, m := range lint.RunAll("chart", v, "kube-system").Messages {
		if m.Severity >= support.ErrorSev {
			out = append(out, m.Error())
		}
	}
	return out
}

func TestMissingValues(t *testing.T) {
	for name, tt := range map[string]struct {
		values values
		want   string
	}{
		"the API server":  {values{"config": values{"clusterCIDR": podsRange}}, "the address of the API server, such as https://192.0.2.10:6443"},
		"the pods' range": {values{"apiServer": apiServer}, "the range of the pods, such as 10.244.0.0/16"},
		"the pods' range, with its mode said aloud": {values{"apiServer": apiServer, "config": values{"detectLocalMode": "ClusterCIDR"}}, "the range of the pods, such as 10.244.0.0/16"},
		"the bridge":                   {needed(values{"config": values{"detectLocalMode": "BridgeInterface"}}), "/config"},
		"the interfaces' prefix":       {needed(values{"config": values{"detectLocalMode": "InterfaceNamePrefix", "detectLocal": values{"bridgeInterface": "cni0"}}}), "interfaceNamePrefix"},
		"the address of health checks": {needed(values{"config": values{"healthzBindAddress": nil}}), "healthzBindAddress"},
	} {
		t.Run(name, func(t *testing.T) { expectRefusal(t, tt.values, tt.want) })
	}
}

func TestRefusedValues(t *testing.T) {
	for name, tt := range map[string]struct {
		values values
		want   string
	}{
		"a misspelt value":                  {values{"apiserver": "x"}, "'apiserver' not allowed"},
		"a misspelt field":                  {values{"config": values{"clusterCidr": podsRange}}, "'clusterCidr' not allowed"},
		"a misspelt field of a field":       {values{"config": values{"conntrack": values{"maxPerCpu": 1}}}, "'maxPerCpu' not allowed"},
		"mode iptables":                     {values{"config": values{"mode": "iptables"}}, "/config/mode"},
		"mode ipvs":                         {values{"config": values{"mode": "ipvs"}}, "'nftables'"},
		"another version":                   {values{"config": values{"apiVersion": "kubeproxy.config.k8s.io/v1alpha2"}}, "/config/apiVersion"},
		"a kubeconfig of one's own":         {values{"config": values{"clientConnection": values{"kubeconfig": "/etc/kubeconfig"}}}, "/config/clientConnection/kubeconfig"},
		"one name for all nodes":            {values{"config": values{"hostnameOverride": "node-1"}}, "the chart gives each pod the name of its node"},
		"a range without a mask":            {values{"config": values{"clusterCIDR": "10.244.0.0"}}, "a range such as 10.244.0.0/16, or one of each IP family"},
		"an interface as node port address": {values{"config": values{"nodePortAddresses": []any{"eth0"}}}, "primary, localhost, all, or a range such as 192.0.2.0/24"},
		"a duration without unit":           {values{"config": values{"conntrack": values{"tcpEstablishedTimeout": "60"}}}, "a duration with its unit, such as 30s"},
		"a bit that a mark does not have":   {values{"config": values{"nftables": values{"masqueradeBit": 32}}}, "/config/nftables/masqueradeBit"},
		"health checks at a name":           {values{"config": values{"healthzBindAddress": "localhost:10256"}}, "an IP address and a port, such as 0.0.0.0:10256"},
		"a feature gate as a string":        {values{"config": values{"featureGates": values{"ContextualLogging": "true"}}}, "/config/featureGates/ContextualLogging"},
		"an unknown pull policy":            {values{"image": values{"pullPolicy": "Sometimes"}}, "/image/pullPolicy"},
		"a pull secret without its name":    {values{"imagePullSecrets": []any{"registry"}}, "/imagePullSecrets/0"},
		"a misspelt toleration":             {values{"tolerations": []any{values{"operater": "Exists"}}}, "'operater' not allowed"},
		"an affinity of no kind":            {values{"affinity": values{"node": values{}}}, "'node' not allowed"},
		"a label that finds the pods":       {values{"podLabels": values{"k8s-app": "mine"}}, "set by the chart itself"},
		"the chart's own label":             {values{"labels": values{"app.kubernetes.io/name": "mine"}}, "set by the chart itself"},
		"a label that is a number":          {values{"labels": values{"team": 7}}, "/labels/team"},
		"two pods on a node":                {values{"updateStrategy": values{"rollingUpdate": values{"maxSurge": 1}}}, "maxSurge"},
		"a rollout that never moves":        {values{"updateStrategy": values{"rollingUpdate": values{"maxUnavailable": 0}}}, "maxUnavailable"},
		"an unknown update strategy":        {values{"updateStrategy": values{"type": "Recreate"}}, "/updateStrategy/type"},
		"a seccomp profile without a file":  {values{"seccompProfile": values{"type": "Localhost"}}, "localhostProfile"},
		"a seccomp profile of no type":      {values{"seccompProfile": values{"type": "localhost"}}, "/seccompProfile/type"},
		"misspelt resources":                {values{"resources": values{"request": values{"cpu": "1"}}}, "'request' not allowed"},
		"a server without an address":       {values{"nodeLocalServer": values{"enabled": true}}, "an address of the nodes with the server, such as control-plane.example"},
		"a server's address with its port":  {values{"nodeLocalServer": values{"enabled": true, "address": "control-plane.example:10264"}}, "an address of the nodes with the server"},
		"a canary without a version":        {values{"canary": values{"enabled": true}}, "the image tag of the other version"},
		"metrics that Prometheus cannot reach": {
			values{"monitoring": values{"enabled": true}},
			"/config/metricsBindAddress': value must be 'an address that Prometheus reaches, such as 0.0.0.0:10249'",
		},
	} {
		t.Run(name, func(t *testing.T) { expectRefusal(t, needed(tt.values), tt.want) })
	}
}

func TestAPIServer(t *testing.T) {
	for _, address := range []string{
		"https://kubernetes", "https://kubernetes:443", "https://kubernetes.default", "https://kubernetes.default:443/",
		"https://kubernetes.default.svc", "https://kubernetes.default.svc.cluster.local", "https://kubernetes.default.svc.example.org:443",
		"https://proxy.kube-system.svc", "https://proxy.kube-system.svc.cluster.local.:6443",
	} {
		t.Run(address+" needs Services", func(t *testing.T) {
			expectRefusal(t, needed(values{"apiServer": address}), "works without Services and their DNS")
		})
	}
	for _, address := range []string{"192.0.2.10:6443", "http://192.0.2.10:6443", "https://", "https://control plane"} {
		t.Run(address+" is no address", func(t *testing.T) {
			expectRefusal(t, needed(values{"apiServer": address}), "the address of the API server, such as https://192.0.2.10:6443")
		})
	}
	for _, address := range []string{
		"https://192.0.2.10:6443", "https://192.0.2.10", "https://[2001:db8::1]:6443", "https://127.0.0.1:6443/",
		"https://kubernetes.example.org:6443", "https://api.svc.example.org", "https://rancher.example.org/k8s/clusters/c-1",
	} {
		t.Run(address+" works", func(t *testing.T) {
			text := configMapOf(t, chart(t, needed(values{"apiServer": address}))).Data["kubeconfig.conf"]
			if !strings.Contains(text, "server: "+address+"\n") {
				t.Errorf("kubeconfig without %s:\n%s", address, text)
			}
		})
	}
	t.Run("the ClusterIP of the API server needs Services", func(t *testing.T) {
		for _, address := range []string{"https://10.96.0.1:443", "https://[fd00:10:96::1]"} {
			_, err := renderChartIn(needed(values{"apiServer": address}), inCluster)
			if err == nil || !strings.Contains(err.Error(), "is the ClusterIP of the Service kubernetes") {
				t.Errorf("%s: error %v", address, err)
			}
		}
	})
	t.Run("another address works in that cluster", func(t *testing.T) {
		if _, err := renderChartIn(needed(values{"apiServer": "https://192.0.2.10:6443"}), inCluster); err != nil {
			t.Error(err)
		}
	})
}

// inCluster renders as helm does that is connected to a cluster with a Service kubernetes.
func inCluster(chart helmchart.Charter, v common.Values) (map[string]string, error) {
	return engine.RenderWithClientProvider(chart, v, clusterWithKubernetes{})
}

type clusterWithKubernetes struct{}

// GetClientFor implements engine.ClientProvider.
func (clusterWithKubernetes) GetClientFor(string, string) (dynamic.NamespaceableResourceInterface, bool, error) {
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Service",
		"metadata": map[string]any{"name": "kubernetes", "namespace": "default"},
		"spec":     map[string]any{"clusterIPs": []any{"10.96.0.1", "fd00:10:96::1"}},
	}}
	services := schema.GroupVersionResource{Version: "v1", Resource: "services"}
	return fake.NewSimpleDynamicClient(runtime.NewScheme(), service).Resource(services), true, nil
}

// daemonSetWith renders the chart with values and returns its DaemonSet.
func daemonSetWith(t *testing.T, v values) *appsv1.DaemonSet {
	t.Helper()
	return get[*appsv1.DaemonSet](t, chart(t, needed(v)), "DaemonSet nftproxy")
}

func TestPodPlacement(t *testing.T) {
	nodeAffinity := values{"requiredDuringSchedulingIgnoredDuringExecution": values{"nodeSelectorTerms": []any{
		values{"matchExpressions": []any{values{"key": "edge", "operator": "DoesNotExist"}}},
	}}}
	spec := daemonSetWith(t, values{
		"nodeSelector":      values{"pool": "new"},
		"tolerations":       []any{values{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}},
		"affinity":          values{"nodeAffinity": nodeAffinity},
		"priorityClassName": "mine",
	}).Spec.Template.Spec
	want := corev1.PodSpec{
		NodeSelector:      map[string]string{"kubernetes.io/os": "linux", "pool": "new"},
		Tolerations:       []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
		PriorityClassName: "mine",
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "edge", Operator: corev1.NodeSelectorOpDoesNotExist}}}},
		}}},
	}
	got := corev1.PodSpec{NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations, PriorityClassName: spec.PriorityClassName, Affinity: spec.Affinity}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPodReplacement(t *testing.T) {
	t.Run("in steps of the operator's choice", func(t *testing.T) {
		spec := daemonSetWith(t, values{"updateStrategy": values{"rollingUpdate": values{"maxUnavailable": 3}}, "minReadySeconds": 60}).Spec
		if got := *spec.UpdateStrategy.RollingUpdate.MaxUnavailable; got != intstr.FromInt32(3) || spec.MinReadySeconds != 60 {
			t.Errorf("maxUnavailable %v, minReadySeconds %d, want 3 and 60", &got, spec.MinReadySeconds)
		}
	})
	t.Run("by the operator", func(t *testing.T) {
		got := daemonSetWith(t, values{"updateStrategy": values{"type": "OnDelete"}}).Spec.UpdateStrategy
		if diff := cmp.Diff(appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestLabelsAndAnnotations(t *testing.T) {
	v := monitored()
	v["labels"], v["podLabels"] = values{"team": "network"}, values{"mesh": "off"}
	v["annotations"], v["podAnnotations"] = values{"owner": "network"}, values{"scrape": "no"}
	all := chart(t, v)
	for key, obj := range all {
		named, err := meta.Accessor(obj)
		if err != nil {
			t.Fatal(err)
		}
		if got := named.GetLabels(); got["team"] != "network" || !strings.HasPrefix(got["app.kubernetes.io/name"], "nftproxy") || got["mesh"] != "" {
			t.Errorf("labels of %s: %v", key, got)
		}
	}
	set := get[*appsv1.DaemonSet](t, all, "DaemonSet nftproxy")
	if got := set.Annotations["owner"]; got != "network" {
		t.Errorf("annotations of the DaemonSet: %v", set.Annotations)
	}
	if !selects(t, set.Spec.Selector, set) || len(set.Spec.Selector.MatchLabels) != 1 {
		t.Errorf("selector %v, which cannot be changed later", set.Spec.Selector)
	}
	template := set.Spec.Template.ObjectMeta
	want := metav1.ObjectMeta{
		Labels:      map[string]string{"app.kubernetes.io/name": "nftproxy", "k8s-app": "kube-proxy", "team": "network", "mesh": "off"},
		Annotations: map[string]string{"scrape": "no", "checksum/config": template.Annotations["checksum/config"]},
	}
	if diff := cmp.Diff(want, template); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}
