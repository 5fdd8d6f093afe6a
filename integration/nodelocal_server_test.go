package integration

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

func TestNodeLocalServer(t *testing.T) {
	t.Parallel()
	const at = "127.0.0.1:10265"
	l := lab.ForTest(t)
	api, kubeconfig := lab.APIServer(t, l.Node)
	api.Hang("endpointslices")
	lab.Create(t, api, &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "web", Labels: map[string]string{"tier": "front", "team": "a"}, Annotations: map[string]string{"weight": "3"},
	}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
		Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, AppProtocol: new("http")}},
	}}, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.5"}}},
	})
	socket := "unix://" + t.TempDir() + "/node-local.sock"
	lab.Start(t, l.Node, "kube-proxy", "node-local-server", "--kubeconfig", kubeconfig, "--listen", socket, "--metrics-bind-address", at)
	t.Run("is not ready before it knows all, and says for what it waits", func(t *testing.T) {
		await.Until(t, "it is alive", func() error { return pageSays(l.Node, at, "/livez", http.StatusOK, "ok") })
		for _, path := range []string{"/readyz", "/healthz"} {
			await.Until(t, path+" names the resource", func() error {
				return pageSays(l.Node, at, path, http.StatusServiceUnavailable, "endpointslices")
			})
		}
	})
	t.Run("is ready then", func(t *testing.T) {
		api.Answer("endpointslices")
		for _, path := range []string{"/readyz", "/healthz", "/livez"} {
			await.Until(t, path+" is well", func() error { return pageSays(l.Node, at, path, http.StatusOK, "ok") })
		}
	})
	t.Run("prints the labels and annotations that were asked for", func(t *testing.T) {
		watch := lab.Start(t, l.Node, "kube-proxy", "node-local-watch", "--node-local-source", socket, "--hostname-override", lab.NodeName,
			"--service-labels", "tier,none", "--service-annotations", "weight")
		watch.Says(t, `"app_protocol":"http","service_type":"SERVICE_TYPE_CLUSTER_IP","service_labels":{"tier":"front"},"service_annotations":{"weight":"3"}`)
	})
	t.Run("shows the metrics that it has, and no others", func(t *testing.T) {
		page, err := getFrom(l.Node, "http://"+at+"/metrics")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, match := range regexp.MustCompile(`(?m)^# TYPE (kubeproxy_\w+)`).FindAllStringSubmatch(page, -1) {
			got = append(got, match[1])
		}
		slices.Sort(got)
		want := []string{
			"kubeproxy_empty_state_held",
			"kubeproxy_node_local_batches_total",
			"kubeproxy_node_local_lag_seconds",
			"kubeproxy_node_local_refused_total",
			"kubeproxy_node_local_sent_bytes_total",
			"kubeproxy_node_local_watchers",
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending",
			"kubeproxy_sync_proxy_rules_endpoint_changes_total",
			"kubeproxy_sync_proxy_rules_service_changes_pending",
			"kubeproxy_sync_proxy_rules_service_changes_total",
			"kubeproxy_unguarded_load_balancer_services",
		}
		// Those with a label appear with the first failure.
		got = slices.DeleteFunc(got, func(name string) bool { return name == "kubeproxy_watch_failing" })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// pageSays returns an error unless a page has a status code, and a text in it.
func pageSays(h *lab.Host, at, path string, code int, text string) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.DialContext}}
	response, err := client.Get("http://" + at + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body := make([]byte, 1000)
	n, _ := response.Body.Read(body)
	if response.StatusCode != code || !strings.Contains(string(body[:n]), text) {
		return fmt.Errorf("%s: %d %q", path, response.StatusCode, body[:n])
	}
	return nil
}
