package takeover

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var previous = flag.String("previous", "", "the revision that is the version before this one; without it the last tag, or else the commit before")

// TestSkew has this version and the one before it serve one node, under connections of which none may be lost.
func TestSkew(t *testing.T) {
	before, now := previousBinary(t), lab.Binary(t, "kube-proxy")
	t.Run("each restarts over the other's tables", func(t *testing.T) { testRestartsOverOtherVersion(t, before, now) })
	t.Run("server and backend of different versions", func(t *testing.T) { testServerOfOtherVersion(t, before, now) })
}

// An update, the way back, and an update again.
func testRestartsOverOtherVersion(t *testing.T, before, now string) {
	l := lab.ForTest(t)
	dir := manifestsDir(t)
	start := func(binary string) *lab.Process {
		p := lab.StartCommand(t, l.Node, exec.Command(binary, append(flags, "--manifests", dir)...))
		lab.AwaitHealthy(t, l.Node)
		return p
	}
	p := start(before)
	tr := startTraffic(t, l)
	for _, binary := range []string{now, before, now} {
		p.Stop(t)
		p = start(binary)
		tr.flow(t)
	}
	awaitOurs(t, lab.Conn(t, l.Node))
	tr.finish(t)
	tr.expectNothingLost(t)
}

// One of the two is updated first, whichever that is, and goes back.
func testServerOfOtherVersion(t *testing.T, before, now string) {
	l := lab.ForTest(t)
	api, kubeconfig := lab.APIServer(t, l.Node)
	lab.Upload(t, api, manifestsFile)
	socket := "unix://" + filepath.Join(private.Dir(t), "node-local.sock")
	startServer := func(binary string) *lab.Process {
		return lab.StartCommand(t, l.Node, exec.Command(binary, "node-local-server", "--kubeconfig", kubeconfig, "--listen", socket))
	}
	startBackend := func(binary string) *lab.Process {
		p := lab.StartCommand(t, l.Node, exec.Command(binary, append(slices.Clone(flags), "--node-local-source", socket)...))
		lab.AwaitHealthy(t, l.Node)
		return p
	}
	server, backend := startServer(before), startBackend(before)
	tr := startTraffic(t, l)
	for i, versions := range [][2]string{{now, before}, {now, now}, {before, now}, {before, before}} {
		server.Stop(t)
		server = startServer(versions[0])
		backend.Stop(t)
		backend = startBackend(versions[1])
		awaitNewService(t, l, api, fmt.Sprintf("10.96.7.%d", i+1))
		tr.flow(t)
	}
	tr.finish(t)
	tr.expectNothingLost(t)
}

func (tr *traffic) expectNothingLost(t *testing.T) {
	t.Helper()
	if err := errors.Join(append(tr.lost, tr.moved...)...); err != nil {
		t.Errorf("between two versions no connection may be lost: %v", err)
	}
}

// awaitNewService creates a Service with a ClusterIP, and waits until the client reaches its endpoint.
func awaitNewService(t *testing.T, l *lab.Lab, api *apiservertest.Server, ip string) {
	t.Helper()
	name := strings.NewReplacer(".", "-", ":", "-").Replace("new-" + ip)
	port, family := int32(servedPorts[0]), discoveryv1.AddressTypeIPv4
	if strings.Contains(ip, ":") {
		family = discoveryv1.AddressTypeIPv6
	}
	endpoint := ownPods[0].Like(netip.MustParseAddr(ip)).String()
	lab.Create(t, api, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
	}, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: family,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: &port, Protocol: new(corev1.ProtocolTCP)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{endpoint}}},
	})
	await.Until(t, "a new Service is served", func() error {
		return l.Client.Do(func() error {
			conn, err := net.DialTimeout("tcp", net.JoinHostPort(ip, "80"), 2*time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		})
	})
}

// previousBinary builds kube-proxy as it was in the version before, from git.
func previousBinary(t *testing.T) string {
	t.Helper()
	run := func(dir, program string, args ...string) (string, error) {
		cmd := exec.Command(program, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
		return strings.TrimSpace(string(out)), err
	}
	revision := *previous
	if revision == "" {
		var err error
		if revision, err = run("", "git", "describe", "--tags", "--abbrev=0", "HEAD~1"); err != nil {
			revision = "HEAD~1"
		}
	}
	dir := t.TempDir()
	for _, command := range [][]string{
		{"../..", "git", "archive", "--output", filepath.Join(dir, "source.tar"), revision},
		{dir, "tar", "-xf", "source.tar"},
		{dir, "go", "build", "-tags", "grpcnotrace", "-trimpath", "-buildvcs=false", "-o", "previous", "./cmd/kube-proxy"},
	} {
		if _, err := run(command[0], command[1], command[2:]...); err != nil {
			t.Fatalf("building kube-proxy of %s (a clone with its history has it): %v", revision, err)
		}
	}
	return filepath.Join(dir, "previous")
}
