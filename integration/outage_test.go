package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// outage is how long the API server is gone: longer than clients and load balancers wait for anything.
const outage = time.Minute

// servePod starts a pod that tells each client its name, and again for each line that the client sends.
func servePod(t *testing.T, l *lab.Lab, name, addr string) {
	t.Helper()
	pod, err := l.AddPod(name, netip.MustParseAddr(addr))
	if err != nil {
		t.Fatal(err)
	}
	lab.ServeTCP(t, pod, ":8080", func(conn net.Conn) {
		lines := bufio.NewScanner(conn)
		for fmt.Fprintln(conn, name); lines.Scan(); fmt.Fprintln(conn, name) {
		}
	})
}

// newOutageLab makes a lab with the pods first and second, and an API server. The Service has the first pod.
func newOutageLab(t *testing.T) (l *lab.Lab, server *apiservertest.Server, kubeconfig string) {
	t.Helper()
	l = lab.ForTest(t)
	server, kubeconfig = lab.APIServer(t, l.Node)
	servePod(t, l, "first", "10.244.1.5")
	servePod(t, l, "second", "10.244.1.6")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lab.NodeName}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: lab.NodeAddrs.IPv4.String()}},
	}}
	service, slice := outageObjects("10.244.1.5")
	lab.Create(t, server, node, service, slice)
	return l, server, kubeconfig
}

// dialService returns a connection to the Service and who serves it.
func dialService(h *lab.Host) (net.Conn, string, error) { return dialAt(h, "10.96.0.10:80") }

// dialAt returns a connection to what servePod started, by some address of the Service.
func dialAt(h *lab.Host, address string) (net.Conn, string, error) {
	var conn net.Conn
	if err := h.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", address, await.Patience)
		return err
	}); err != nil {
		return nil, "", err
	}
	name, err := readLine(conn)
	if err != nil {
		conn.Close()
		return nil, "", err
	}
	return conn, name, nil
}

func readLine(r io.Reader) (string, error) {
	line, err := bufio.NewReader(r).ReadString('\n')
	return strings.TrimSpace(line), err
}

// outageObjects is the Service that dialService dials.
func outageObjects(endpoints ...string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	return serviceAt("web", "10.96.0.10", endpoints...)
}

// serviceAt is a Service of what servePod started, with its ClusterIP.
func serviceAt(name, address string, endpoints ...string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	meta := metav1.ObjectMeta{Namespace: "shop", Name: name}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: address, ClusterIPs: []string{address},
		Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: name}
	port, portName, protocol := int32(8080), "", corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}}}
	for _, addr := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}})
	}
	return service, slice
}

// keepDialing makes one connection to the Service after the other until stopped, and fails the test when one fails.
func keepDialing(t *testing.T, h *lab.Host) (stop func()) {
	return keepDialingAt(t, h, "10.96.0.10:80")
}

func keepDialingAt(t *testing.T, h *lab.Host, address string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	dialed := 0
	group.Go(func() {
		for ctx.Err() == nil {
			conn, _, err := dialAt(h, address)
			if err != nil {
				t.Errorf("connection %d to %s: %v", dialed, address, err)
				return
			}
			conn.Close()
			dialed++
			time.Sleep(5 * time.Millisecond)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
		t.Logf("%d connections were made one after the other", dialed)
	})
	t.Cleanup(stop)
	return stop
}

func TestOutage(t *testing.T) {
	t.Run("traffic flows while the API server is gone", testTrafficFlowsWhileTheAPIServerIsGone)
}

func testTrafficFlowsWhileTheAPIServerIsGone(t *testing.T) {
	t.Parallel()
	l, server, kubeconfig := newOutageLab(t)
	p := lab.Start(t, l.Node, "kube-proxy", "--kubeconfig", kubeconfig, "--hostname-override", lab.NodeName)
	var lasting net.Conn
	await.Until(t, "the Service answers", func() (err error) {
		lasting, _, err = dialService(l.Client)
		return err
	})
	defer lasting.Close()

	stop := keepDialing(t, l.Client)
	server.Stop()
	_, slice := outageObjects("10.244.1.6")
	lab.Update(t, server, slice)
	server.Compact()
	time.Sleep(outage)
	stop()
	if _, name, err := dialService(l.Client); err != nil || name != "first" {
		t.Errorf("without an API server a client reached %q, %v; want first", name, err)
	}
	stop = keepDialing(t, l.Client)
	if err := l.Node.Do(server.Resume); err != nil {
		t.Fatal(err)
	}
	// By now client-go waits for 30 to 60 seconds before it tries again.
	await.Within(t, 90*time.Second, "a change made during the outage arrives", func() error {
		conn, name, err := dialService(l.Client)
		if err != nil {
			return err
		}
		conn.Close()
		if name != "second" {
			return fmt.Errorf("%s answered", name)
		}
		return nil
	})
	stop()
	if _, err := fmt.Fprintln(lasting); err != nil {
		t.Error(err)
	}
	if name, err := readLine(lasting); err != nil || name != "first" {
		t.Errorf("a connection from before the outage reads %q, %v; want first", name, err)
	}
	if err := p.Stop(t); err != nil {
		t.Errorf("the process ended with %v; want it to have lived through the outage", err)
	}
}
