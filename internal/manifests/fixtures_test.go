package manifests

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
)

const serviceText = `apiVersion: v1
kind: Service
metadata:
  name: %s
spec:
  clusterIP: %s
  ports:
  - port: 80
`

const sliceText = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %s-1
  labels:
    kubernetes.io/service-name: %s
addressType: IPv4
ports:
- name: ""
  port: 8080
endpoints:
- addresses: [%s]
`

func serviceYAML(name, ip string) string { return fmt.Sprintf(serviceText, name, ip) }

func sliceYAML(service, ip string) string { return fmt.Sprintf(sliceText, service, service, ip) }

// writeFile writes a file in place, as most editors and tests do.
func writeFile(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// recorder is a tracker.Sink that keeps what it has and what it was told.
type recorder struct {
	mu     sync.Mutex
	state  map[string]string
	events []string
	synced bool
	// waiting is the last reason to wait that the source gave.
	waiting string
	wake    chan struct{}
}

func newRecorder() *recorder {
	return &recorder{state: map[string]string{}, wake: make(chan struct{}, 1)}
}

func (r *recorder) tell(event string, change func()) {
	r.mu.Lock()
	change()
	r.events = append(r.events, event)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *recorder) set(key, value string) {
	r.tell("set "+key, func() { r.state[key] = value })
}

func (r *recorder) remove(key string) {
	r.tell("delete "+key, func() { delete(r.state, key) })
}

func (r *recorder) SetService(s *corev1.Service) {
	r.set("Service "+s.Namespace+"/"+s.Name, s.Spec.ClusterIP)
}
func (r *recorder) DeleteService(namespace, name string) {
	r.remove("Service " + namespace + "/" + name)
}
func (r *recorder) SetEndpointSlice(s *discoveryv1.EndpointSlice) {
	var addresses []string
	for _, e := range s.Endpoints {
		addresses = append(addresses, e.Addresses...)
	}
	r.set("EndpointSlice "+s.Namespace+"/"+s.Name, strings.Join(addresses, ","))
}
func (r *recorder) DeleteEndpointSlice(namespace, name string) {
	r.remove("EndpointSlice " + namespace + "/" + name)
}
func (r *recorder) SetNode(n *corev1.Node) { r.set("Node "+n.Name, n.Spec.PodCIDR) }
func (r *recorder) DeleteNode(name string) { r.remove("Node " + name) }
func (r *recorder) SetServiceCIDR(c *networkingv1.ServiceCIDR) {
	r.set("ServiceCIDR "+c.Name, strings.Join(c.Spec.CIDRs, ","))
}
func (r *recorder) DeleteServiceCIDR(name string) { r.remove("ServiceCIDR " + name) }
func (r *recorder) Waiting(reason string) {
	r.tell("waiting", func() { r.waiting = reason })
}
func (r *recorder) Synced() { r.tell("synced", func() { r.synced = true }) }

// waitFor waits until the state is want, or fails.
func (r *recorder) waitFor(t *testing.T, want map[string]string) {
	t.Helper()
	deadline := time.After(await.Patience)
	for {
		r.mu.Lock()
		state, synced := maps.Clone(r.state), r.synced
		r.mu.Unlock()
		if synced && maps.Equal(state, want) {
			return
		}
		select {
		case <-r.wake:
		case <-deadline:
			t.Fatalf("state is %v (synced: %t), want %v", state, synced, want)
		}
	}
}

// waitForReason waits until the source waits for want, or fails.
func (r *recorder) waitForReason(t *testing.T, want string) {
	t.Helper()
	var waiting string
	for deadline := time.Now().Add(await.Patience); time.Now().Before(deadline); {
		r.mu.Lock()
		synced := r.synced
		waiting = r.waiting
		r.mu.Unlock()
		if waiting == want && !synced {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the source waits for %q, want %q", waiting, want)
}

// takeEvents returns what the sink was told since the last call.
func (r *recorder) takeEvents() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// logLines keeps what is logged.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) logger() klog.Logger {
	return funcr.New(func(prefix, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, prefix+" "+args)
	}, funcr.Options{})
}

func (l *logLines) count(part string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

// waitFor waits until a line with part is logged.
func (l *logLines) waitFor(t *testing.T, part string) {
	t.Helper()
	l.waitForCount(t, part, 1)
}

// waitForCount waits until n lines with part are logged.
func (l *logLines) waitForCount(t *testing.T, part string, n int) {
	t.Helper()
	for deadline := time.Now().Add(await.Patience); time.Now().Before(deadline); {
		if l.count(part) >= n {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Fatalf("fewer than %d log lines have %q in\n%s", n, part, strings.Join(slices.Clone(l.lines), "\n"))
}

// start runs a Source over dir until the test ends.
func start(t *testing.T, dir string, adjust ...func(*Source)) (*recorder, *logLines) {
	t.Helper()
	sink, log := newRecorder(), &logLines{}
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), log.logger()))
	done := make(chan error, 1)
	source := New(dir)
	source.Quiet = 20 * time.Millisecond
	for _, f := range adjust {
		f(source)
	}
	go func() { done <- source.Run(ctx, sink) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	return sink, log
}
