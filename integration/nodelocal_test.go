package integration

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
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

// The brain and the backend are processes of their own. Each is killed once, and traffic flows all the while.
func testKilledProcessesLoseNoConnection(t *testing.T) {
	t.Parallel()
	l, server, kubeconfig := newOutageLab(t)
	move := func(addr string) {
		t.Helper()
		_, slice := outageObjects(addr)
		slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
		lab.Update(t, server, slice)
	}
	socket := "unix://" + filepath.Join(t.TempDir(), "node-local.sock")
	startBrain := func() *lab.Process {
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
	brain, backend := startBrain(), startBackend()
	expectAnswerOf(t, l, "first")
	lasting, _, err := dialService(l.Client)
	if err != nil {
		t.Fatal(err)
	}
	defer lasting.Close()
	stop := keepDialing(t, l.Client)

	kill(brain)
	await.Until(t, "the health check names the brain that is away", func() error {
		body, err := getFrom(l.Node, "http://127.0.0.1:10256/healthz")
		if err == nil && !strings.Contains(body, "node-local-source") {
			err = fmt.Errorf("it says %s", body)
		}
		return err
	})
	move("10.244.1.6")
	brain = startBrain()
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
	for name, p := range map[string]*lab.Process{"brain": brain, "backend": backend} {
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
	socket := "unix://" + filepath.Join(t.TempDir(), "node-local.sock")
	lab.Start(t, l.Node, "kube-proxy", "--manifests", dir, "--hostname-override", lab.NodeName, "--serve-node-local", socket)
	watch := lab.Start(t, l.Node, "kube-proxy", "node-local-watch", "--node-local-source", socket, "--hostname-override", lab.NodeName)
	watch.Says(t, `{"full":true,"node":{"name":"`+lab.NodeName+`"`)
	watch.Says(t, `{"sync":{}}`)
	t.Run("no other node is served", func(t *testing.T) {
		other := lab.Start(t, l.Node, "kube-proxy", "node-local-watch", "--node-local-source", socket, "--hostname-override", "another")
		other.Says(t, `is not served here, but only the node that this server runs on`)
	})
}
