package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

func TestPods(t *testing.T) {
	t.Run("apply the rules on their nodes", testPodsProgramTheirNodes)
}

func testPodsProgramTheirNodes(t *testing.T) {
	role := get[*rbacv1.ClusterRole](t, kustomize(t, "kustomize/base"), "ClusterRole nftproxy")
	for name, render := range map[string]func(t *testing.T, c cluster) (corev1.PodSpec, *corev1.ConfigMap){
		"the chart":                 fromChart,
		"kustomize":                 fromKustomize,
		"in the place of kubeadm's": fromKubeadm,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			spec, configMap := render(t, c)
			checkPod(t, newPod(t, c, spec, configMap))
			checkRole(t, c.api.Requests("", ""), role)
		})
	}
}

// checkPod runs the pod's containers one after the other, and the last one until it has done its work.
func checkPod(t *testing.T, p pod) {
	t.Helper()
	proxy := p.apply(t)
	c := p.spec.Containers[0]
	p.checkPorts(t, c)
	if err := proxy.Stop(t); err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
	rules, err := p.run(t, c, "/usr/local/bin/ruledump", "live")
	if err != nil || !strings.Contains(rules, clusterIP) {
		t.Errorf("after the end of the proxy: error %v, rules\n%s", err, rules)
	}
	if _, err := p.run(t, c, "/usr/local/bin/kube-proxy", "--cleanup"); err != nil {
		t.Error(err)
	}
	if _, err := p.run(t, c, "/usr/local/bin/ruledump", "live"); err == nil || !strings.Contains(err.Error(), "has no table") {
		t.Errorf("after --cleanup: error %v, want one that says that there is no table", err)
	}
}

// apply runs the pod's init containers, and its container until the rules are in the kernel.
func (p pod) apply(t *testing.T) (proxy *lab.Process) {
	t.Helper()
	for _, c := range p.spec.InitContainers {
		if err := p.start(t, p.container(c)).Wait(); err != nil {
			t.Fatalf("init container %s: %v", c.Name, err)
		}
	}
	c := p.spec.Containers[0]
	proxy = p.start(t, p.container(c))
	await.Until(t, "the Service in the kernel", func() error {
		rules, err := p.run(t, c, "/usr/local/bin/ruledump", "live")
		if err == nil && !strings.Contains(rules, clusterIP) {
			err = fmt.Errorf("no %s in\n%s", clusterIP, rules)
		}
		return err
	})
	return proxy
}

// checkProbe asks what the kubelet asks for a probe.
func (p pod) checkProbe(probe *corev1.Probe, ports map[string]int32) error {
	_, err := p.cluster.get(ports[probe.HTTPGet.Port.StrVal], probe.HTTPGet.Path)
	return err
}

func portsOf(c corev1.Container) map[string]int32 {
	ports := map[string]int32{}
	for _, port := range c.Ports {
		ports[port.Name] = port.ContainerPort
	}
	return ports
}

// checkPorts asks the container's ports what Prometheus and the kubelet ask them.
func (p pod) checkPorts(t *testing.T, c corev1.Container) {
	t.Helper()
	ports := portsOf(c)
	page, err := p.cluster.get(ports["metrics"], "/metrics")
	if err != nil {
		t.Error(err)
	}
	for name := range otherMetrics {
		if name == "rest_client_requests_total" && !*p.spec.AutomountServiceAccountToken {
			continue // it asks no API server
		}
		if name != "up" && !strings.Contains(page, "\n# TYPE "+name+" ") {
			t.Errorf("/metrics has no %s, which alerts and dashboard ask for", name)
		}
	}
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if err := p.checkProbe(probe, ports); err != nil {
			t.Error(err)
		}
	}
}

func TestProbes(t *testing.T) {
	for name, set := range daemonSets(t) {
		c := set.Spec.Template.Spec.Containers[0]
		t.Run(name+": the kubelet waits before it asks for the first time", func(t *testing.T) {
			// Else it asks before anybody listens, and posts a failure for each new pod.
			if c.StartupProbe == nil || c.StartupProbe.InitialDelaySeconds < 1 {
				t.Errorf("startup probe %v", c.StartupProbe)
			}
		})
		t.Run(name+": readiness asks for Services, liveness does not", func(t *testing.T) {
			if got := c.ReadinessProbe.HTTPGet.Path; got != "/healthz" {
				t.Errorf("readiness asks %s", got)
			}
			for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe} {
				if probe == nil || probe.HTTPGet.Path != "/livez" {
					t.Errorf("startup or liveness asks %v, want /livez", probe)
				}
			}
		})
	}
	t.Run("a pod lives on while the API server is away", func(t *testing.T) {
		cluster := newCluster(t)
		spec, configMap := fromChart(t, cluster)
		cluster.api.Stop()
		p := newPod(t, cluster, spec, configMap)
		c := spec.Containers[0]
		if c.StartupProbe == nil {
			t.Fatal("no startup probe")
		}
		p.start(t, privileged(p.container(c)))
		started := time.Now()
		await.Until(t, "the health server", func() error { return p.checkProbe(c.StartupProbe, portsOf(c)) })
		t.Logf("listens after %v", time.Since(started).Round(time.Millisecond))
		for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe} {
			if err := p.checkProbe(probe, portsOf(c)); err != nil {
				t.Error(err)
			}
		}
	})
}

// privileged lets a container set the sysctls, for a test without the init container.
func privileged(c container) container {
	c.Privileged = true
	return c
}

func fromChart(t *testing.T, c cluster) (corev1.PodSpec, *corev1.ConfigMap) {
	t.Helper()
	all := chart(t, needed(values{"apiServer": c.api.URL()}))
	return get[*appsv1.DaemonSet](t, all, "DaemonSet nftproxy").Spec.Template.Spec, configMapOf(t, all)
}

func fromKustomize(t *testing.T, c cluster) (corev1.PodSpec, *corev1.ConfigMap) {
	t.Helper()
	all := kustomize(t, "kustomize/overlays/standalone")
	configMap := configMapOf(t, all)
	for file, content := range configMap.Data {
		configMap.Data[file] = strings.NewReplacer(apiServer, c.api.URL(), unsetPodsRange, podsRange).Replace(content)
	}
	return get[*appsv1.DaemonSet](t, all, "DaemonSet nftproxy").Spec.Template.Spec, configMap
}

// fromKubeadm has the ConfigMap that kubeadm makes.
func fromKubeadm(t *testing.T, c cluster) (corev1.PodSpec, *corev1.ConfigMap) {
	t.Helper()
	spec := get[*appsv1.DaemonSet](t, kustomize(t, "kustomize/overlays/kubeadm"), "DaemonSet kube-proxy").Spec.Template.Spec
	if got := spec.Volumes[0].ConfigMap.Name; got != "kube-proxy" {
		t.Errorf("the pod mounts the ConfigMap %s, want kubeadm's", got)
	}
	_, configMap := fromKustomize(t, c)
	configMap.Data["config.conf"] = kubeadmConfiguration(t)
	return spec, configMap
}

// kubeadmConfiguration is a configuration as kubeadm writes it: with every field, empty or not.
func kubeadmConfiguration(t *testing.T) string {
	t.Helper()
	var c kubeproxyv1alpha1.KubeProxyConfiguration
	c.TypeMeta = metav1.TypeMeta{APIVersion: "kubeproxy.config.k8s.io/v1alpha1", Kind: "KubeProxyConfiguration"}
	c.BindAddress = "0.0.0.0"
	c.ClientConnection.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
	c.ClusterCIDR = "10.244.0.0/16"
	text, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkRole compares what the program asked the API server for with what the role allows.
// Which events are written, and when, is not for this test to say.
func checkRole(t *testing.T, asked []apiservertest.Request, role *rbacv1.ClusterRole) {
	t.Helper()
	var requests []string
	for _, r := range asked {
		requests = append(requests, r.Verb+" "+r.Resource)
	}
	slices.Sort(requests)
	for _, request := range slices.Compact(requests) {
		if !slices.Contains(allowed(role), request) {
			t.Errorf("the program wants to %s, which the role does not allow", request)
		}
	}
	for _, request := range allowed(role) {
		if !slices.Contains(requests, request) && !strings.HasSuffix(request, " events") {
			t.Errorf("the role allows to %s, which the program never does", request)
		}
	}
}

// allowed lists what a role allows, as "list services".
func allowed(role *rbacv1.ClusterRole) []string {
	var out []string
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				out = append(out, verb+" "+resource)
			}
		}
	}
	return out
}
