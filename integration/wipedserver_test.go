package integration

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
)

// kubernetesService is default/kubernetes, as an API server makes it by itself.
func kubernetesService() (*corev1.Service, *discoveryv1.EndpointSlice) {
	service, slice := serviceAt("kubernetes", "10.96.0.1", "10.244.1.6")
	service.Namespace, slice.Namespace = metav1.NamespaceDefault, metav1.NamespaceDefault
	return service, slice
}

// wiped is an API server with objects, and what a proxy must keep of them.
type wiped struct {
	*troubled
	server     *apiservertest.Server
	kubeconfig string
	objects    []apiservertest.Object
}

func newWiped(t *testing.T) *wiped {
	t.Helper()
	l := lab.ForTest(t)
	servePod(t, l, "first", "10.244.1.5")
	servePod(t, l, "second", "10.244.1.6")
	server, kubeconfig := lab.APIServer(t, l.Node)
	web, webSlice := outageObjects("10.244.1.5")
	kubernetes, kubernetesSlice := kubernetesService()
	w := &wiped{
		troubled: &troubled{lab: l}, server: server, kubeconfig: kubeconfig,
		objects: []apiservertest.Object{worldNode(), web, webSlice, kubernetes, kubernetesSlice},
	}
	lab.Create(t, server, w.objects...)
	return w
}

// wipe empties the storage of the API server, which begins again with default/kubernetes of another UID.
func (w *wiped) wipe(t *testing.T) {
	t.Helper()
	w.server.Stop()
	lab.Delete(t, w.server, w.objects...)
	w.server.Compact()
	kubernetes, slice := kubernetesService()
	lab.Create(t, w.server, kubernetes, slice)
	if err := w.lab.Node.Do(w.server.Resume); err != nil {
		t.Fatal(err)
	}
}

// refuses waits until nobody answers at the address of the Service.
func (w *wiped) refuses(t *testing.T) {
	t.Helper()
	await.Until(t, "the Service goes", func() error {
		return w.lab.Client.Do(func() error {
			if conn, err := net.DialTimeout("tcp", "10.96.0.10:80", time.Second); err == nil {
				conn.Close()
				return errors.New("it answers")
			}
			return nil
		})
	})
}

// believe sends the signal that says "yes, really".
func believe(t *testing.T, p *lab.Process) {
	t.Helper()
	if err := p.Cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
}

// An API server whose storage was wiped has default/kubernetes within seconds. Connections go on, the node stays in its
// load balancers, and neither that Service nor the first one of a restore ends it.
func TestWipedAPIServer(t *testing.T) {
	t.Parallel()
	w := newWiped(t)
	p := lab.Start(t, w.lab.Node, "kube-proxy", "--kubeconfig", w.kubeconfig, "--hostname-override", lab.NodeName)
	expectAnswerOf(t, w.lab, "first")
	w.becomes(t, "200 200")
	lasting, stop := keepConnecting(t, w.lab.Client)

	w.wipe(t)
	for _, resource := range []string{"services", "endpointslices", "nodes"} {
		w.metricIs(t, `kubeproxy_losses_held{resource="`+resource+`"}`, "1")
		w.becomes(t, "200 200", resource+": the source lacks ")
	}
	w.remains(t, "200 200")
	expectAlive(t, lasting, "first")

	t.Log("the first Service of a restore")
	other, slice := serviceAt("other", "10.96.0.11", "10.244.1.6")
	lab.Create(t, w.server, other, slice, worldNode())
	w.reachesAt(t, await.Patience, "10.96.0.11:80", "second")
	w.becomes(t, "200 200", "services: the source lacks 1 of 2 and is another cluster or has a new storage", "what it lacks stays until 2")
	w.metricIs(t, `kubeproxy_losses_held{resource="nodes"}`, "0")
	w.remains(t, "200 200")
	expectAlive(t, lasting, "first")
	stop()

	t.Log("yes, really")
	believe(t, p)
	w.metricIs(t, `kubeproxy_losses_held{resource="services"}`, "0")
	w.refuses(t)
	w.becomes(t, "200 200")
	w.reachesAt(t, await.Patience, "10.96.0.11:80", "second")
}

// The backends of a node-local server see what it holds, also those that come later, and what it believes. They hold for
// themselves what another server, which has started since, does not know.
func TestWipedAPIServerOfNodeLocalServer(t *testing.T) {
	for name, restart := range map[string]bool{"that goes on": false, "that starts anew": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testWipedAPIServerOfNodeLocalServer(t, restart)
		})
	}
}

func testWipedAPIServerOfNodeLocalServer(t *testing.T, restart bool) {
	const at = "127.0.0.1:10265"
	w := newWiped(t)
	socket := "unix://" + private.Dir(t) + "/node-local.sock"
	start := func(args ...string) *lab.Process { return lab.Start(t, w.lab.Node, "kube-proxy", args...) }
	serve := func() *lab.Process {
		return start("node-local-server", "--kubeconfig", w.kubeconfig, "--listen", socket, "--metrics-bind-address", at)
	}
	follow := func() *lab.Process {
		return start("--node-local-source", socket, "--hostname-override", lab.NodeName)
	}
	server, backend := serve(), follow()
	expectAnswerOf(t, w.lab, "first")
	lasting, stop := keepConnecting(t, w.lab.Client)

	w.wipe(t)
	for _, resource := range []string{"endpointslices", "nodes", "services"} {
		await.Until(t, "the server says what it holds", func() error {
			return pageSays(w.lab.Node, at, "/readyz", http.StatusOK, "; "+resource+": the source lacks 1 of ")
		})
	}
	lab.Create(t, w.server, worldNode())
	told := server
	if restart {
		if err := server.Stop(t); err != nil {
			t.Error(err)
		}
		serve()
		told = backend
		w.becomes(t, "200 200", "services: the source lacks 1 of 2; what it lacks stays until 10m0s after it has others")
	} else {
		if err := backend.Stop(t); err != nil {
			t.Error(err)
		}
		follow()
		w.becomes(t, "200 200")
		w.metricIs(t, `kubeproxy_losses_held{resource="services"}`, "0")
	}
	expectAnswerOf(t, w.lab, "first")
	expectAlive(t, lasting, "first")
	stop()

	believe(t, told)
	w.refuses(t)
	await.Until(t, "the server holds nothing", func() error {
		if held, err := getFrom(w.lab.Node, "http://"+at+"/readyz"); err != nil || held != "ok" {
			return fmt.Errorf("%q, %v", held, err)
		}
		return nil
	})
}

// As kube-proxy v1.37, whose process ends then, a node without a Node gets no traffic from load balancers.
func TestDeletedNode(t *testing.T) {
	for name, start := range map[string]func(t *testing.T, w *wiped){
		"of a proxy": func(t *testing.T, w *wiped) {
			lab.Start(t, w.lab.Node, "kube-proxy", "--kubeconfig", w.kubeconfig, "--hostname-override", lab.NodeName)
		},
		"of a backend of a node-local server": func(t *testing.T, w *wiped) {
			socket := "unix://" + private.Dir(t) + "/node-local.sock"
			lab.Start(t, w.lab.Node, "kube-proxy", "node-local-server", "--kubeconfig", w.kubeconfig, "--listen", socket)
			lab.Start(t, w.lab.Node, "kube-proxy", "--node-local-source", socket, "--hostname-override", lab.NodeName)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWiped(t)
			start(t, w)
			w.becomes(t, "200 200")
			expectAnswerOf(t, w.lab, "first")
			lab.Delete(t, w.server, worldNode())
			w.becomes(t, "503 200", `"nodeEligible":false`)
			expectAnswerOf(t, w.lab, "first")
			lab.Create(t, w.server, worldNode())
			w.becomes(t, "200 200")
		})
	}
}
