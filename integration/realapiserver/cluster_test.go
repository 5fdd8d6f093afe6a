// Package realapiserver tests the proxy with Kubernetes' own kube-apiserver and etcd: what the in-process server of
// apiservertest leaves out, and what it may do differently.
package realapiserver

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

var programs = flag.String("kubernetes", "", "the folder with Kubernetes' programs, from `make kubernetes`")

func TestMain(m *testing.M) { lab.Main(m) }

const (
	namespace    = metav1.NamespaceDefault
	endpointPort = 8080
)

// pods are those that answer, on node-1 and on node-2, and say which they are.
var pods = map[string]lab.Addrs{
	"own":    {IPv4: netip.MustParseAddr("10.244.1.5"), IPv6: netip.MustParseAddr("fd00:10:244:1::5")},
	"remote": {IPv4: netip.MustParseAddr("10.244.2.5"), IPv6: netip.MustParseAddr("fd00:10:244:2::5")},
}

// cluster is a node in a lab with an API server, which has the Node.
type cluster struct {
	lab    *lab.Lab
	server *apiservertest.Real
	client *kubernetes.Clientset
	proxy  *lab.Process
}

// forEachKindOfLists runs a test with a server that streams lists and with one that does not, as older servers.
func forEachKindOfLists(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	for name, without := range map[string]bool{"streaming lists": false, "plain lists": true} {
		t.Run(name, func(t *testing.T) { test(t, newCluster(t, without)) })
	}
}

func newCluster(t *testing.T, withoutWatchList bool) *cluster {
	t.Helper()
	if *programs == "" {
		t.Skip("it needs Kubernetes' kube-apiserver and etcd: make test-kubernetes")
	}
	l := lab.ForTest(t)
	c := &cluster{lab: l}
	c.server = apiservertest.StartReal(t, apiservertest.RealOptions{
		Assets: *programs, Do: l.Node.Do, Dial: l.Node.DialContext, WithoutWatchList: withoutWatchList,
	})
	config := c.server.Config()
	config.QPS = -1
	var err error
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	c.servePods(t)
	c.createNode(t)
	return c
}

func (c *cluster) servePods(t *testing.T) {
	t.Helper()
	own, err := c.lab.AddPod("own", pods["own"].IPv4, pods["own"].IPv6)
	if err != nil {
		t.Fatal(err)
	}
	for name, addrs := range pods {
		h := own
		if name == "remote" {
			h = c.lab.Remote
		}
		for _, addr := range []netip.Addr{addrs.IPv4, addrs.IPv6} {
			if name == "remote" {
				if err := c.lab.AddRemoteAddr(addr); err != nil {
					t.Fatal(err)
				}
			}
			lab.ServeTCP(t, h, netip.AddrPortFrom(addr, endpointPort).String(), func(conn net.Conn) {
				fmt.Fprint(conn, name)
				conn.Close()
			})
		}
	}
}

// createNode creates the Node, once the server has its namespaces.
func (c *cluster) createNode(t *testing.T) {
	t.Helper()
	await.Until(t, "the server has namespace "+namespace, func() error {
		_, err := c.client.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
		return err
	})
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: lab.NodeName},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:10:244:1::/64"}},
	}
	created, err := c.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []netip.Addr{lab.NodeAddrs.IPv4, lab.NodeAddrs.IPv6} {
		created.Status.Addresses = append(created.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: addr.String()})
	}
	if _, err := c.client.CoreV1().Nodes().UpdateStatus(t.Context(), created, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// startProxy starts the proxy with a kubeconfig, and waits until it has synced unless it cannot.
func (c *cluster) startProxy(t *testing.T, kubeconfig string) {
	t.Helper()
	c.proxy = lab.Start(t, c.lab.Node, "kube-proxy", "--kubeconfig="+kubeconfig, "--hostname-override="+lab.NodeName,
		"--cluster-cidr=10.244.0.0/16,fd00:10:244::/48", "--nodeport-addresses=primary", "-v=2",
		// The sysctls of connection tracking are in part those of the whole machine.
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
}

// create creates a dual-stack Service, as a client does that leaves addresses to the server, with slices of the pods.
func (c *cluster) create(t *testing.T, name string, kind corev1.ServiceType, podNames ...string) *corev1.Service {
	t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	s.Spec.Type, s.Spec.IPFamilyPolicy = kind, new(corev1.IPFamilyPolicyRequireDualStack)
	s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(endpointPort)}}
	created, err := c.client.CoreV1().Services(namespace).Create(t.Context(), s, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name + "-" + strings.ToLower(string(family)), Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: family,
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(endpointPort))}},
		}
		for _, pod := range podNames {
			addr, node := pods[pod].IPv4, lab.NodeName
			if family == discoveryv1.AddressTypeIPv6 {
				addr = pods[pod].IPv6
			}
			if pod == "remote" {
				node = lab.RemoteName
			}
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: &node})
		}
		if _, err := c.client.DiscoveryV1().EndpointSlices(namespace).Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return created
}

// delete deletes a Service and its slices.
func (c *cluster) delete(t *testing.T, s *corev1.Service) {
	t.Helper()
	if err := c.client.CoreV1().Services(namespace).Delete(t.Context(), s.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.client.DiscoveryV1().EndpointSlices(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + s.Name}); err != nil {
		t.Fatal(err)
	}
}

// addressesOf are where the Service answers, of both families.
func addressesOf(s *corev1.Service) (all []string) {
	for _, ip := range s.Spec.ClusterIPs {
		all = append(all, net.JoinHostPort(ip, "80"))
	}
	return all
}

// dial asks who answers at an address.
func dial(from *lab.Host, address string) (pod string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	conn, err := from.DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	buffer := make([]byte, 64)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}

// serves waits until the Service answers a pod at all its addresses.
func (c *cluster) serves(t *testing.T, s *corev1.Service) {
	t.Helper()
	for _, address := range addressesOf(s) {
		c.servesAt(t, c.lab.Client, address)
	}
}

func (c *cluster) servesAt(t *testing.T, from *lab.Host, address string) {
	t.Helper()
	await.Until(t, from.Name+" reaches "+address, func() error {
		_, err := dial(from, address)
		return err
	})
}

// isGone waits until nothing answers at the Service's addresses.
func (c *cluster) isGone(t *testing.T, s *corev1.Service) {
	t.Helper()
	for _, address := range addressesOf(s) {
		await.Until(t, address+" does not answer", func() error {
			if pod, err := dial(c.lab.Client, address); err == nil {
				return fmt.Errorf("pod %s answers", pod)
			}
			return nil
		})
	}
}

// stillServes fails the test unless the Service answers now.
func (c *cluster) stillServes(t *testing.T, s *corev1.Service) {
	t.Helper()
	for _, address := range addressesOf(s) {
		if _, err := dial(c.lab.Client, address); err != nil {
			t.Errorf("Service %s does not answer at %s: %v", s.Name, address, err)
		}
	}
}

func kubeconfigFor(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	writeFile(t, path, text)
	return path
}
