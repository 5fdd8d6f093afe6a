package integration

import (
	"bytes"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// A transaction that the kernel does not answer, and the kubelet, which kills what has not ended 30 s
// after SIGTERM.
func TestSIGTERM(t *testing.T) {
	t.Run("during a sync that does not end, the proxy ends with code 0", func(t *testing.T) {
		f := newWithServer(t)
		hangs, release := make(chan struct{}), make(chan struct{})
		hang := sync.OnceFunc(func() { close(hangs) })
		t.Cleanup(func() { close(release) })
		p := f.startFiltered(t, process.Calls(process.Judged, unix.SYS_SENDMSG), func(c *process.Call) process.Verdict {
			if bytes.Contains(c.Message(), []byte("shop/hanging")) {
				hang()
				<-release
			}
			return process.Pass
		}, "--kubeconfig="+f.kubeconfig)
		f.applied(t)
		service, slice := serviceAt("hanging", "10.96.0.99", "10.244.1.5")
		lab.Create(t, f.server, service, slice)
		select {
		case <-hangs:
		case <-time.After(await.Patience):
			t.Fatalf("no sync of the Service; the log:\n%s", p.Output())
		}

		if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- p.Wait() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("it ended with %v", err)
			}
		case <-time.After(20 * time.Second):
			p.Cmd.Process.Kill()
			<-ended
			t.Errorf("still running after 20 s; the log:\n%s", p.Output())
		}
		if log := p.Output(); !strings.Contains(log, "Leaving a sync that is still under way") || !strings.Contains(log, "Stopping; the rules stay in the kernel") {
			t.Errorf("the log does not say why:\n%s", log)
		}
		f.stays(t)
	})
	t.Run("at any moment is no error", testSIGTERMIsNoError)
}

const (
	// someStops is the number of stops of each program without -every-call, each up to lastStop after its start.
	someStops = 6
	lastStop  = 600 * time.Millisecond
)

// Whatever a program is doing, an operator who stops it finds no error in the log, and code 0.
func testSIGTERMIsNoError(t *testing.T) {
	f := newWithServer(t)
	service, slice := busyService("10.244.1.5", "10.244.1.6")
	lab.Create(t, f.server, service, slice)
	socket := func(name string) string { return "unix://" + filepath.Join(private.Dir(t), name) }
	server, kubeconfig := socket("server"), "--kubeconfig="+f.kubeconfig
	lab.Start(t, f.lab.Node, "kube-proxy", "node-local-server", kubeconfig, "--listen="+server).Says(t, "Serving the node-local API")
	const signalled = "Version info" // by then it has asked to be told of signals
	for _, program := range []struct {
		name, firstLine string
		args            []string
	}{
		{"a proxy that serves others", signalled, append(f.args(), kubeconfig, "--bind-address-hard-fail", "--nodeport-addresses=127.0.0.0/8,192.168.0.0/24", "--serve-node-local="+socket("proxy"))},
		{"a proxy with a node-local source", signalled, append(f.args(), "--node-local-source="+server, "--bind-address-hard-fail")},
		{"a node-local server", "Serving the node-local API", []string{"node-local-server", kubeconfig, "--listen=" + socket("server")}},
	} {
		stops := someStops
		if *everyCall {
			stops *= 25
		}
		for range stops {
			p := lab.Start(t, f.lab.Node, "kube-proxy", program.args...)
			p.Says(t, program.firstLine)
			delay := time.Duration(math.Pow(rand.Float64(), 3) * float64(lastStop)) // most happens at first
			time.Sleep(delay)
			if err := p.Stop(t); err != nil {
				t.Errorf("%s, stopped after %v, ends with %v", program.name, delay, err)
			}
			if errors := p.Errors(); len(errors) > 0 {
				t.Errorf("%s, stopped after %v, logs the errors %q", program.name, delay, errors)
			}
			if rand.IntN(2) == 0 {
				lab.Nft(t, f.lab.Node, "", "flush", "ruleset") // the next start has much to do, or nothing
			}
		}
	}
}

// Ports of busyService.
const busyNodePort, busyHealthPort = 30077, 30078

// busyService makes every part of the proxy work. Its endpoints are on this node.
func busyService(endpoints ...string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	service, slice := serviceAt("fault", faultAddress, endpoints...)
	service.Spec.Type, service.Spec.Ports[0].NodePort = corev1.ServiceTypeLoadBalancer, busyNodePort
	service.Spec.ExternalTrafficPolicy, service.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, busyHealthPort
	service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.77"}}
	service.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
	udp := service.Spec.Ports[0]
	udp.Name, udp.Protocol, udp.NodePort = "udp", corev1.ProtocolUDP, 30079
	service.Spec.Ports = append(service.Spec.Ports, udp)
	name, port, protocol := udp.Name, int32(8080), udp.Protocol
	slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &protocol})
	node := lab.NodeName
	for i := range slice.Endpoints {
		slice.Endpoints[i].NodeName = &node
	}
	return service, slice
}

func TestCleanupCommand(t *testing.T) {
	t.Run("beside a running proxy", testCleanupBesideARunningProxy)
}

// cleanup runs the command, with no other argument, and returns its output.
func (f *withServer) cleanup(t *testing.T) (output string, err error) {
	t.Helper()
	p := lab.Start(t, f.lab.Node, "kube-proxy", "--cleanup")
	err = p.Wait()
	return p.Output(), err
}

func (f *withServer) tables(t *testing.T) string {
	t.Helper()
	return lab.Nft(t, f.lab.Node, "", "list", "tables")
}

// The tables are back within a second, so "Removed" alone would be wrong.
func testCleanupBesideARunningProxy(t *testing.T) {
	f := newWithServer(t)
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	p.Says(t, firstSyncLine)
	output, err := f.cleanup(t)
	if want := "a proxy runs on this node: it has added again ip kube-proxy"; err == nil || !strings.Contains(output, want) {
		t.Errorf("the command ended with %v, want an error that says %q:\n%s", err, want, output)
	}
	if tables := f.tables(t); !strings.Contains(tables, "ip kube-proxy") {
		t.Errorf("the tables are %q, so this test shows nothing", tables)
	}
	if err := p.Stop(t); err != nil {
		t.Fatal(err)
	}
	output, err = f.cleanup(t)
	if err != nil || !strings.Contains(output, `"Removed" table="ip kube-proxy"`) {
		t.Errorf("without a proxy, the command ended with %v:\n%s", err, output)
	}
	if strings.Contains(output, "warning") {
		t.Errorf("the command warns of what concerns a running proxy only:\n%s", output)
	}
	if tables := f.tables(t); strings.Contains(tables, "kube-proxy") {
		t.Errorf("the tables are %q", tables)
	}
}
