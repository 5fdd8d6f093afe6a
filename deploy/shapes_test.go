package deploy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// A node has the pods of one of the two, by its label.
func TestCanary(t *testing.T) {
	all := chart(t, needed(values{
		"image": values{"tag": "v1"}, "canary": values{"enabled": true, "tag": "v2"},
		"affinity": values{"podAntiAffinity": values{"preferredDuringSchedulingIgnoredDuringExecution": []any{}}},
	}))
	operators := map[string]corev1.NodeSelectorOperator{}
	for name, tag := range map[string]string{"nftproxy": "v1", "nftproxy-canary": "v2"} {
		set := get[*appsv1.DaemonSet](t, all, "DaemonSet "+name)
		spec := set.Spec.Template.Spec
		for _, c := range append(spec.InitContainers, spec.Containers...) {
			if !strings.HasSuffix(c.Image, ":"+tag) {
				t.Errorf("%s has image %s, want %s", name, c.Image, tag)
			}
		}
		if !selects(t, set.Spec.Selector, set) {
			t.Errorf("%s does not select its pods", name)
		}
		terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 || terms[0].MatchExpressions[0].Key != "nftproxy.io/canary" || spec.Affinity.PodAntiAffinity == nil {
			t.Errorf("affinity of %s: %v", name, spec.Affinity)
			continue
		}
		operators[name] = terms[0].MatchExpressions[0].Operator
	}
	want := map[string]corev1.NodeSelectorOperator{"nftproxy": corev1.NodeSelectorOpDoesNotExist, "nftproxy-canary": corev1.NodeSelectorOpExists}
	if diff := cmp.Diff(want, operators); diff != "" {
		t.Errorf("nodes with the label (-want +got):\n%s", diff)
	}
	if selects(t, get[*appsv1.DaemonSet](t, all, "DaemonSet nftproxy").Spec.Selector, get[*appsv1.DaemonSet](t, all, "DaemonSet nftproxy-canary")) {
		t.Error("one selects the other's pods")
	}
	t.Run("and a node affinity of one's own exclude one another", func(t *testing.T) {
		expectRefusal(t, needed(values{
			"canary":   values{"enabled": true, "tag": "v2"},
			"affinity": values{"nodeAffinity": values{"preferredDuringSchedulingIgnoredDuringExecution": []any{}}},
		}), "nothing: canary sets it; use nodeSelector")
	})
}

// The pod of `helm test` reaches the API server through the Service kubernetes, and fails without a proxy.
func TestHelmTest(t *testing.T) {
	const serviceIP, port = "10.96.0.1", 6443
	l := lab.ForTest(t)
	c := cluster{node: l.Node}
	if err := l.Node.Do(func() error {
		c.api = apiservertest.Start(t, apiservertest.Options{Address: "0.0.0.0:6443", WithoutWatchList: true})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	lab.Create(t, c.api, append(service(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: serviceIP, ClusterIPs: []string{serviceIP}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP}},
		},
	}, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(port)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"192.168.0.1"}}},
	})...)
	all := chart(t, needed(values{"apiServer": "https://127.0.0.1:6443", "networkPolicy": values{"enabled": true}}))
	spec := get[*corev1.Pod](t, all, "Pod nftproxy-test").Spec
	if policy := get[*networkingv1.NetworkPolicy](t, all, "NetworkPolicy nftproxy-test"); policy.Spec.PodSelector.MatchLabels["app.kubernetes.io/name"] != "nftproxy-test" || spec.HostNetwork {
		t.Errorf("the policy is for %v", policy.Spec.PodSelector)
	}
	files := get[*corev1.ConfigMap](t, all, "ConfigMap nftproxy-test").DeepCopy()
	// The lab has no DNS, and the server's certificate is for localhost.
	files.Data["kubeconfig.conf"] = strings.ReplaceAll(files.Data["kubeconfig.conf"], "kubernetes.default.svc", "localhost")
	host, err := l.AddPod("test", netip.MustParseAddr("10.244.1.9"), netip.MustParseAddr("fd00:10:244:1::9"))
	if err != nil {
		t.Fatal(err)
	}
	client := newPod(t, cluster{node: host, api: c.api}, spec, files)
	client.write(t, "/etc/hosts", serviceIP+" localhost\n")
	test := spec.Containers[0]
	without := client.start(t, client.container(test))
	ended := time.AfterFunc(time.Second, func() { without.Cmd.Process.Kill() })
	if err := without.Wait(); err == nil {
		t.Errorf("without a proxy it says %s", without.Output())
	}
	ended.Stop()
	proxy := newPod(t, c, get[*appsv1.DaemonSet](t, all, "DaemonSet nftproxy").Spec.Template.Spec, configMapOf(t, all))
	proxy.apply(t)
	output, err := client.run(t, test, client.container(test).Command...)
	if err != nil || !strings.Contains(output, "default/kubernetes:https  "+serviceIP+":443/TCP") {
		t.Errorf("%v, %s", err, output)
	}
	role := allowed(get[*rbacv1.ClusterRole](t, all, "ClusterRole nftproxy"))
	for _, r := range c.api.Requests("", "") {
		if !slices.Contains(role, r.Verb+" "+r.Resource) {
			t.Errorf("it wants to %s %s, which the role does not allow", r.Verb, r.Resource)
		}
	}
}
