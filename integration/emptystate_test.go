package integration

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	"github.com/nftproxy/nftproxy/tracker"
)

// world is a source of Services, as a test makes it lose them and have them again.
type world struct {
	// flags make the proxy follow the source.
	flags []string
	// lose makes the source say that there is nothing, in a list or a full state. mend puts the Service back, with
	// another pod.
	lose, mend func(t *testing.T)
	// held lists the resources that are held.
	held []string
}

var worlds = map[string]func(t *testing.T, l *lab.Lab) world{
	"manifests":         manifestsWorld,
	"API server":        apiServerWorld,
	"node-local server": nodeLocalWorld,
}

// writeWorld writes the Service of outageObjects into a file of its own.
func writeWorld(t *testing.T, dir string, endpoints ...string) {
	t.Helper()
	service, slice := outageObjects(endpoints...)
	service.APIVersion, service.Kind = "v1", "Service"
	slice.APIVersion, slice.Kind = "discovery.k8s.io/v1", "EndpointSlice"
	var text []byte
	for _, obj := range []any{service, slice} {
		document, err := yaml.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, "---\n"...), document...)
	}
	if err := os.WriteFile(filepath.Join(dir, ".new"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
}

func manifestsWorld(t *testing.T, _ *lab.Lab) world {
	dir := t.TempDir()
	writeWorld(t, dir, "10.244.1.5")
	return world{
		flags: []string{"--manifests", dir, "--hostname-override", lab.NodeName},
		lose: func(t *testing.T) {
			if err := os.Remove(filepath.Join(dir, "web.yaml")); err != nil {
				t.Fatal(err)
			}
		},
		mend: func(t *testing.T) { writeWorld(t, dir, "10.244.1.6") },
		held: []string{"endpointslices", "services"},
	}
}

func worldNode() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lab.NodeName}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: lab.NodeAddrs.IPv4.String()}},
	}}
}

func apiServerWorld(t *testing.T, l *lab.Lab) world {
	api, kubeconfig := lab.APIServer(t, l.Node)
	service, slice := outageObjects("10.244.1.5")
	lab.Create(t, api, worldNode(), service, slice)
	return world{
		flags: []string{"--kubeconfig", kubeconfig, "--hostname-override", lab.NodeName},
		lose: func(t *testing.T) {
			api.Stop()
			for _, obj := range []apiservertest.Object{service, slice} {
				lab.Delete(t, api, obj)
			}
			api.Compact()
			if err := l.Node.Do(api.Resume); err != nil {
				t.Fatal(err)
			}
		},
		mend: func(t *testing.T) {
			service, slice := outageObjects("10.244.1.6")
			lab.Create(t, api, service, slice)
		},
		held: []string{"endpointslices", "services"},
	}
}

// nodeLocalWorld has a server that believes in an empty cluster, as other implementations may.
func nodeLocalWorld(t *testing.T, _ *lab.Lab) world {
	socket := "unix://" + filepath.Join(private.Dir(t), "node-local.sock")
	serve := func(endpoints ...string) (tr *tracker.Tracker, stop func()) {
		tr = tracker.New(tracker.Options{NodeName: lab.NodeName})
		tr.SetNode(worldNode())
		if len(endpoints) > 0 {
			service, slice := outageObjects(endpoints...)
			tr.SetEndpointSlice(slice)
			tr.SetService(service)
		}
		tr.Synced()
		ctx, cancel := context.WithCancel(context.Background())
		listener, err := server.Listen(ctx, socket, false)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- server.New(tr, server.Options{}).Serve(ctx, listener) }()
		stop = sync.OnceFunc(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(stop)
		return tr, stop
	}
	tr, stop := serve("10.244.1.5")
	return world{
		flags: []string{"--node-local-source", socket, "--hostname-override", lab.NodeName},
		lose: func(*testing.T) {
			stop()
			tr, _ = serve()
		},
		mend: func(*testing.T) {
			service, slice := outageObjects("10.244.1.6")
			tr.SetEndpointSlice(slice)
			tr.SetService(service)
		},
		held: []string{"services"},
	}
}

// A list or full state without Services is not believed: connections go on, health and a metric tell, and it ends when
// the Service is back. A proxy that runs stays in its load balancers. One that starts is not ready.
func TestEmptyState(t *testing.T) {
	for name, newWorld := range worlds {
		for when, restart := range map[string]bool{"while running": false, "at a start": true} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				testEmptyState(t, newWorld, restart)
			})
		}
	}
}

func testEmptyState(t *testing.T, newWorld func(*testing.T, *lab.Lab) world, restart bool) {
	l := lab.ForTest(t)
	servePod(t, l, "first", "10.244.1.5")
	servePod(t, l, "second", "10.244.1.6")
	w := newWorld(t, l)
	start := func() *lab.Process { return lab.Start(t, l.Node, "kube-proxy", w.flags...) }
	p := start()
	f := &troubled{lab: l}
	expectAnswerOf(t, l, "first")
	lasting, stop := keepConnecting(t, l.Client)

	if restart {
		if err := p.Stop(t); err != nil {
			t.Error(err)
		}
	}
	w.lose(t)
	codes, reason := "200 200", ": the source lacks 1 of 1"
	if restart {
		p = start()
		codes, reason = "503 200", ": the source has none"
	}
	for _, resource := range w.held {
		f.becomes(t, codes, resource+reason)
		f.metricIs(t, `kubeproxy_losses_held{resource="`+resource+`"}`, "1")
	}
	f.remains(t, codes)
	expectAnswerOf(t, l, "first")
	expectAlive(t, lasting, "first")
	held := slices.DeleteFunc(p.Errors(), func(line string) bool { return !strings.Contains(line, "Not believing what a list lacks") })
	if len(held) != len(w.held) {
		t.Errorf("errors %q, want one for each of %v", held, w.held)
	}

	w.mend(t)
	expectAnswerOf(t, l, "second")
	f.becomes(t, "200 200")
	for _, resource := range w.held {
		f.metricIs(t, `kubeproxy_losses_held{resource="`+resource+`"}`, "0")
	}
	stop()
	expectAlive(t, lasting, "first")
}

// A manifest that cannot be parsed when a process starts takes no Service away.
func TestUnreadManifest(t *testing.T) {
	for name, behindServer := range map[string]bool{"stays without effect in the proxy": false, "stays without effect in a node-local server": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testUnreadManifest(t, behindServer)
		})
	}
}

func testUnreadManifest(t *testing.T, behindServer bool) {
	l := lab.ForTest(t)
	servePod(t, l, "first", "10.244.1.5")
	servePod(t, l, "second", "10.244.1.6")
	dir := t.TempDir()
	writeWorld(t, dir, "10.244.1.5")
	socket := "unix://" + filepath.Join(private.Dir(t), "node-local.sock")
	reader := []string{"--manifests", dir, "--hostname-override", lab.NodeName}
	if behindServer {
		reader = []string{"node-local-server", "--manifests", dir, "--listen", socket}
		lab.Start(t, l.Node, "kube-proxy", "--node-local-source", socket, "--hostname-override", lab.NodeName)
	}
	p := lab.Start(t, l.Node, "kube-proxy", reader...)
	f := &troubled{lab: l}
	expectAnswerOf(t, l, "first")
	stop := keepDialing(t, l.Client)

	if err := p.Stop(t); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "web.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), append(text, "---\nkind: [\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	p = lab.Start(t, l.Node, "kube-proxy", reader...)
	p.Says(t, `web.yaml: document 3 (line `)
	if behindServer {
		f.becomes(t, "200 200", "cannot watch node-local-source")
	} else {
		f.becomes(t, "503 200", "waiting for manifests: web.yaml: document 3 (line ")
		f.metricIs(t, `kubeproxy_watch_failing{resource="manifests"}`, "1")
		f.remains(t, "503 200")
	}
	expectAnswerOf(t, l, "first")

	writeWorld(t, dir, "10.244.1.6")
	expectAnswerOf(t, l, "second")
	f.becomes(t, "200 200")
	stop()
}
