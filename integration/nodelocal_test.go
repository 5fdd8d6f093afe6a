package integration

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// expectAnswerOf waits until new connections to the Service of outageObjects reach a pod.
func expectAnswerOf(t *testing.T, l *lab.Lab, name string) {
	t.Helper()
	await.Until(t, "clients reach "+name, func() error {
		conn, got, err := dialService(l.Client)
		if err != nil {
			return err
		}
		conn.Close()
		if got != name {
			return fmt.Errorf("%s answered", got)
		}
		return nil
	})
}

func TestNodeLocalSource(t *testing.T) {
	t.Run("loses no connection when either process is killed", testKilledProcessesLoseNoConnection)
}

// The server and the backend are processes of their own. Each is killed once, and traffic flows all the while.
func testKilledProcessesLoseNoConnection(t *testing.T) {
	t.Parallel()
	l, server, kubeconfig := newOutageLab(t)
	move := func(addr string) {
		t.Helper()
		_, slice := outageObjects(addr)
		slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
		lab.Update(t, server, slice)
	}
	socket := "unix://" + filepath.Join(private.Dir(t), "node-local.sock")
	startServer := func() *lab.Process {
		return lab.Start(t, l.Node, "kube-proxy", "node-local-server", "--kubeconfig", kubeconfig, "--listen", socket)
	}
	startBackend := func() *lab.Process {
		return lab.Start(t, l.Node, "kube-proxy", "--node-local-source", socket, "--hostname-override", lab.NodeName)
	}
	kill := func(p *lab.Process) {
		t.Helper()
		if err := p.Cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = p.Wait()
	}
	nodeLocal, backend := startServer(), startBackend()
	expectAnswerOf(t, l, "first")
	lasting, stop := keepConnecting(t, l.Client)

	kill(nodeLocal)
	await.Until(t, "the health check names the server that is away", func() error {
		body, err := getFrom(l.Node, "http://127.0.0.1:10256/healthz")
		if err == nil && !strings.Contains(body, "node-local-source") {
			err = fmt.Errorf("it says %s", body)
		}
		return err
	})
	move("10.244.1.6")
	nodeLocal = startServer()
	expectAnswerOf(t, l, "second")

	kill(backend)
	move("10.244.1.5")
	backend = startBackend()
	expectAnswerOf(t, l, "first")
	move("10.244.1.6")
	expectAnswerOf(t, l, "second")
	stop()
	expectAlive(t, lasting, "first")
	// The first two came with full states, to processes that were not there when the pods changed.
	await.Until(t, "the metric has the latency of the last change", func() error {
		const want = `kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 1`
		page, err := getFrom(l.Node, "http://127.0.0.1:10249/metrics")
		if err == nil && !strings.Contains(page, want+"\n") {
			err = fmt.Errorf("no line %s", want)
		}
		return err
	})
	for name, p := range map[string]*lab.Process{"server": nodeLocal, "backend": backend} {
		if err := p.Stop(t); err != nil {
			t.Errorf("the %s ended with %v", name, err)
		}
	}
}

func expectAlive(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	if _, err := fmt.Fprintln(conn); err != nil {
		t.Error(err)
	}
	if name, err := readLine(conn); err != nil || name != want {
		t.Errorf("a connection from before reads %q, %v; want %s", name, err, want)
	}
}

// One process does both jobs for its node.
func TestServeNodeLocal(t *testing.T) {
	t.Parallel()
	l := lab.ForTest(t)
	dir := flows.FindCase(t, "hairpin-over-cluster-ip").ManifestsDir(t)
	socket := "unix://" + filepath.Join(private.Dir(t), "node-local.sock")
	lab.Start(t, l.Node, "kube-proxy", "--manifests", dir, "--hostname-override", lab.NodeName, "--serve-node-local", socket)
	watch := lab.Start(t, l.Node, "kube-proxy", "node-local-watch", "--node-local-source", socket, "--hostname-override", lab.NodeName)
	watch.Says(t, `{"full":true,"node":{"name":"`+lab.NodeName+`"`)
	watch.Says(t, `{"sync":{}}`)
	t.Run("no other node is served", func(t *testing.T) {
		other := lab.Start(t, l.Node, "kube-proxy", "node-local-watch", "--node-local-source", socket, "--hostname-override", "another")
		other.Says(t, `is not served here, but only the node that this server runs on`)
	})
}

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
	socket := "unix://" + private.Dir(t) + "/node-local.sock"
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
			"kubeproxy_losses_held",
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
	response, err := clientOf(h).Get("http://" + at + path)
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

// TestTwoNodeLocalServers has two servers behind one address, as those of a Service are, and the
// API server of one of them does not answer.
func TestTwoNodeLocalServers(t *testing.T) {
	t.Parallel()
	l, _, kubeconfig := newOutageLab(t)
	hanging, hangingConfig := lab.APIServer(t, l.Node)
	hanging.Hang("endpointslices")
	dir := private.Dir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	start := func(name, kubeconfig, metrics string) *lab.Process {
		return lab.Start(t, l.Node, "kube-proxy", "node-local-server", "--kubeconfig", kubeconfig, "--listen", "unix://"+at(name), "--metrics-bind-address", metrics)
	}
	without := start("without", hangingConfig, "127.0.0.1:10265")
	start("with", kubeconfig, "127.0.0.1:10266")
	t.Run("the one without an API server is not ready, and says why", func(t *testing.T) {
		await.Until(t, "one is ready", func() error { return pageSays(l.Node, "127.0.0.1:10266", "/readyz", http.StatusOK, "ok") })
		await.Until(t, "one is not", func() error {
			return pageSays(l.Node, "127.0.0.1:10265", "/readyz", http.StatusServiceUnavailable, "endpointslices")
		})
		without.Says(t, `waitingFor="endpointslices`)
	})
	t.Run("a client that comes to it first ends at the other one", func(t *testing.T) {
		startRelay(t, at("both"), at("without"), at("with"))
		backend := lab.Start(t, l.Node, "kube-proxy", "--node-local-source", "unix://"+at("both"), "--hostname-override", lab.NodeName)
		expectAnswerOf(t, l, "first")
		if got := backend.Output(); !strings.Contains(got, "it waits for endpointslices") {
			t.Errorf("the log of the client does not say why the first server refused:\n%s", got)
		}
	})
	t.Run("a second server refuses the socket of the first", func(t *testing.T) {
		second := lab.Start(t, l.Node, "kube-proxy", "node-local-server", "--kubeconfig", kubeconfig, "--listen", "unix://"+at("with"))
		second.Fails(t, "another server listens there")
	})
}
