// Package conformance tests the proxy the way the Kubernetes e2e suite (test/e2e/network) does:
// each test stands for one or a few tests of that suite, by what a node's proxy has to do in them.
// docs/conformance.md says which stands for which, and where they differ.
//
// A test reads like a specification. It has a cluster of two nodes, built out of network
// namespaces, of which node-1 runs the proxy; creates and changes objects over HTTP; and finds
// out with real connections, over IPv4 and IPv6, what became of it.
package conformance

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The nodes. node1 runs the proxy under test. node2 stands for every other node: it has no
// proxy, and what it sends to Service addresses passes node1.
const (
	node1 = lab.NodeName
	node2 = lab.RemoteName
)

// zoneOf holds the zone of each node.
var zoneOf = map[string]string{node1: "zone-a", node2: "zone-b"}

// clusterCIDR is the range of the pods in each family.
const clusterCIDR = "10.244.0.0/16,fd00:10:244::/48"

// cluster is a lab with an API server, and with what the control plane does for Services.
type cluster struct {
	t          *testing.T
	lab        *lab.Lab
	server     *apiservertest.Server
	api        kubernetes.Interface
	kubeconfig string
	controlPlane

	// pod is a pod on node1, and node a process there, as in a pod with hostNetwork.
	// peer is a process on node2, and outside a host outside the cluster.
	pod, node, peer, outside *client
}

// start builds a cluster and runs the proxy in this process. It returns when the proxy has
// programmed the empty cluster.
func start(t *testing.T) *cluster {
	t.Helper()
	return startNamed(t, "")
}

// startNamed does the same with a proxy that has a service-proxy-name.
func startNamed(t *testing.T, serviceProxyName string) *cluster {
	t.Helper()
	c := build(t)
	c.server = apiservertest.Start(t, apiservertest.Options{})
	c.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := c.server.WriteKubeconfig(c.kubeconfig); err != nil {
		t.Fatal(err)
	}
	c.connect(nil)
	c.startProxy(serviceProxyName)
	return c
}

// build makes the lab of a cluster, for tests that run at the same time as others.
func build(t *testing.T) *cluster {
	t.Helper()
	t.Parallel()
	l := lab.ForTest(t)
	c := &cluster{t: t, lab: l}
	c.pod = &client{c: c, name: "a pod", host: l.Client}
	c.node = &client{c: c, name: "a process on node-1", host: l.Node}
	c.peer = &client{c: c, name: "a process on node-2", host: l.Remote}
	c.outside = &client{c: c, name: "a host outside", host: l.Outside}
	return c
}

// dialFunc connects to a server.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// connect makes the client for the API server and registers the nodes. dial replaces the
// client's own way of connecting if it is set.
func (c *cluster) connect(dial dialFunc) {
	c.t.Helper()
	config := c.server.RESTConfig()
	config.QPS, config.Dial = -1, dial
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		c.t.Fatal(err)
	}
	c.api = api
	c.register(node1, lab.NodeAddrs, lab.LocalPodNetworks[0].String(), lab.LocalPodNetworks[1].String())
	c.register(node2, lab.RemoteAddrs, lab.RemotePodNetworks[0].String(), lab.RemotePodNetworks[1].String())
	c.serviceCIDR("kubernetes", "10.96.0.0/24", "fd00:10:96::/112")
}

// register does what a kubelet does when its node joins.
func (c *cluster) register(name string, addrs lab.Addrs, podCIDRs ...string) {
	c.t.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zoneOf[name]}},
		Spec:       corev1.NodeSpec{PodCIDRs: podCIDRs},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: addrs.IPv4.String()},
			{Type: corev1.NodeInternalIP, Address: addrs.IPv6.String()},
		}},
	}
	if _, err := c.api.CoreV1().Nodes().Create(c.t.Context(), node, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// serviceCIDR adds ranges that ClusterIPs come from.
func (c *cluster) serviceCIDR(name string, cidrs ...string) {
	c.t.Helper()
	obj := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	if _, err := c.api.NetworkingV1().ServiceCIDRs().Create(c.t.Context(), obj, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// catchesUp returns when the proxy has done all that was asked of it so far, for tests of what
// must not change: it does things in the order in which they were asked.
func (c *cluster) catchesUp() {
	c.t.Helper()
	name := fmt.Sprint("catch-up-", c.clusterIPs)
	pod := c.runs(name, node1)
	s := c.service(name, ports(tcp(80).to(web)))
	s.selects(pod)
	c.pod.reaches(s.clusterIP(tcp(80)), pod)
}

// eventually fails the test if check still complains when patience is at its end.
func (c *cluster) eventually(subject string, check func() error) {
	c.t.Helper()
	await.Until(c.t, subject, check)
}
