package deploy

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	apiServer = "https://control-plane.example:6443"
	podsRange = "10.244.0.0/16"
)

// monitored are values with everything on.
func monitored() values {
	return needed(values{
		"config":     values{"metricsBindAddress": "0.0.0.0:10249"},
		"monitoring": values{"enabled": true, "labels": values{"release": "prometheus"}},
	})
}

func testChartHasNothingForHelmToComplainAbout(t *testing.T) {
	for name, v := range map[string]values{
		"what needs to be set": needed(values{}),
		"everything":           monitored(),
	} {
		t.Run(name, func(t *testing.T) {
			for _, m := range lint.RunAll("chart", v, "kube-system").Messages {
				if m.Severity > support.InfoSev {
					t.Error(m)
				}
			}
		})
	}
}

var (
	usedObject  = regexp.MustCompile(`daemonset/(\S+)`)
	noteCommand = regexp.MustCompile(`^  (?:kubectl|helm) -n kube-system `)
)

// What helm prints after an installation names what there is, in the namespace where it is.
func testNotesNameWhatWasInstalled(t *testing.T) {
	v := monitored()
	v["privilegedInit"] = false
	v["canary"] = values{"enabled": true, "tag": "v2"}
	v["nodeLocalServer"] = values{"enabled": true, "address": "control-plane.example"}
	files, err := renderFiles(v, engine.Render)
	if err != nil {
		t.Fatal(err)
	}
	text := files[notes]
	all := chart(t, v)
	commands := 0
	for line := range strings.Lines(text) {
		for _, used := range usedObject.FindAllStringSubmatch(line, -1) {
			get[*appsv1.DaemonSet](t, all, "DaemonSet "+used[1])
		}
		if strings.HasPrefix(line, " ") {
			commands++
			if !noteCommand.MatchString(line) {
				t.Errorf("%q is in another namespace than the release", line)
			}
		}
	}
	for _, want := range []string{
		"privilegedInit is false", "metrics at 0.0.0.0:10249", "nftproxy.io/canary have a pod of daemonset/nftproxy-canary",
		"nftproxy-node-local-server\nfor the server, nftproxy-backend for",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the notes do not say %q:\n%s", want, text)
		}
	}
	if commands != 5 {
		t.Errorf("the notes have %d commands:\n%s", commands, text)
	}
}

var documentedValues = regexp.MustCompile("`(\\w+)`")

// testReadmeExplainsEachValue compares the first column of the chart's README with values.yaml.
func testReadmeExplainsEachValue(t *testing.T) {
	readme, err := os.ReadFile("chart/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(readme)) {
		if column, isRow := strings.CutPrefix(line, "| `"); isRow {
			column, _, _ = strings.Cut(column, "|")
			for _, name := range documentedValues.FindAllStringSubmatch("`"+column, -1) {
				got = append(got, name[1])
			}
		}
	}
	loaded, err := loader.LoadDir("chart")
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Collect(maps.Keys(loaded.Values))
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("values of the chart's README (-values.yaml +README):\n%s", diff)
	}
}

func testPortsFollowTheConfiguration(t *testing.T) {
	all := chart(t, needed(values{"config": values{
		"metricsBindAddress": "[::]:20249", "healthzBindAddress": "[::]:20256",
	}}))
	got := map[string]int32{}
	for _, port := range get[*appsv1.DaemonSet](t, all, "DaemonSet nftproxy").Spec.Template.Spec.Containers[0].Ports {
		got[port.Name] = port.ContainerPort
	}
	if got["metrics"] != 20249 || got["healthz"] != 20256 {
		t.Errorf("ports %v, want metrics 20249 and healthz 20256", got)
	}
}

func testMonitoringHasTheLabelsByWhichPrometheusFindsIt(t *testing.T) {
	all := chart(t, monitored())
	for key, labels := range map[string]map[string]string{
		"PodMonitor":     get[*monitoringv1.PodMonitor](t, all, "PodMonitor nftproxy").Labels,
		"PrometheusRule": get[*monitoringv1.PrometheusRule](t, all, "PrometheusRule nftproxy").Labels,
	} {
		if labels["release"] != "prometheus" || labels["app.kubernetes.io/name"] != "nftproxy" {
			t.Errorf("labels of the %s: %v", key, labels)
		}
	}
}

func testPrivilegedContainerCanBeLeftOut(t *testing.T) {
	spec := get[*appsv1.DaemonSet](t, chart(t, needed(values{"privilegedInit": false})), "DaemonSet nftproxy").Spec.Template.Spec
	if len(spec.InitContainers) != 0 {
		t.Errorf("init containers %v, want none", spec.InitContainers)
	}
}

func testSeccompProfileCanBeChosen(t *testing.T) {
	const name = "nftproxy.json"
	spec := get[*appsv1.DaemonSet](t, chart(t, needed(values{"seccompProfile": values{"type": "Localhost", "localhostProfile": name}})), "DaemonSet nftproxy").Spec.Template.Spec
	if profile := spec.Containers[0].SecurityContext.SeccompProfile; profile.Type != corev1.SeccompProfileTypeLocalhost || *profile.LocalhostProfile != name {
		t.Errorf("the profile is %v", profile)
	}
}

func testChangedConfigurationReplacesThePods(t *testing.T) {
	annotations := func(v values) map[string]string {
		return get[*appsv1.DaemonSet](t, chart(t, v), "DaemonSet nftproxy").Spec.Template.Annotations
	}
	before := annotations(needed(values{}))
	after := annotations(needed(values{"config": values{"clusterCIDR": "10.245.0.0/16"}}))
	if before["checksum/config"] == after["checksum/config"] {
		t.Errorf("the annotations stay %v", before)
	}
}

func testImageCanBeChosen(t *testing.T) {
	spec := get[*appsv1.DaemonSet](t, chart(t, needed(values{
		"image":            values{"repository": "registry.example/proxy", "tag": "v7", "pullPolicy": "Always"},
		"imagePullSecrets": []any{values{"name": "registry"}},
	})), "DaemonSet nftproxy").Spec.Template.Spec
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		if c.Image != "registry.example/proxy:v7" || c.ImagePullPolicy != corev1.PullAlways {
			t.Errorf("container %s has image %s, pulled %s", c.Name, c.Image, c.ImagePullPolicy)
		}
	}
	if len(spec.ImagePullSecrets) != 1 || spec.ImagePullSecrets[0].Name != "registry" {
		t.Errorf("pull secrets %v", spec.ImagePullSecrets)
	}
}
