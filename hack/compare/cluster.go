package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

const clusterCIDR = "10.244.0.0/16"

var (
	serviceCIDR = netip.MustParsePrefix("10.96.0.0/12")
	// answering is the one endpoint that exists.
	answering = netip.MustParseAddrPort("10.244.1.5:8080")
	// imaginary is before the first of the endpoints that do not. Nobody dials them.
	imaginary = netip.MustParseAddr("10.128.0.0")
)

// cluster is a node in a lab, with an API server inside.
type cluster struct {
	size       size
	lab        *lab.Lab
	server     *apiservertest.Server
	dir        string
	kubeconfig string

	cleanups []func()
	// services is the number of Services, those that answer included.
	services     int
	lastEndpoint netip.Addr
	// first and last answer, and were created before and after all others.
	first, last netip.AddrPort
}

// serverOwner lets a program start what was made for tests.
type serverOwner struct {
	testing.TB
	c *cluster
}

func (o serverOwner) Helper()                           {}
func (o serverOwner) Cleanup(fn func())                 { o.c.cleanups = append(o.c.cleanups, fn) }
func (o serverOwner) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func newCluster(s size) (c *cluster, err error) {
	c = &cluster{size: s, lastEndpoint: imaginary}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.dir, err = os.MkdirTemp("", "compare"); err != nil {
		return c, err
	}
	if c.lab, err = lab.New(); err != nil {
		return c, err
	}
	if err := c.serve(); err != nil {
		return c, err
	}
	if err := c.lab.Node.Do(func() error {
		c.server = apiservertest.Start(serverOwner{c: c}, apiservertest.Options{})
		return nil
	}); err != nil {
		return c, err
	}
	c.kubeconfig = filepath.Join(c.dir, "kubeconfig")
	if err := c.server.WriteKubeconfig(c.kubeconfig); err != nil {
		return c, err
	}
	return c, c.fill()
}

func (c *cluster) close() {
	for _, fn := range c.cleanups {
		fn()
	}
	if c.lab != nil {
		c.lab.Close()
	}
	os.RemoveAll(c.dir)
}

// serve makes the endpoint that answers: it accepts connections and does no more.
func (c *cluster) serve() error {
	pod, err := c.lab.AddPod("answering", answering.Addr())
	if err != nil {
		return err
	}
	return pod.Do(func() error {
		listener, err := net.Listen("tcp4", answering.String())
		if err != nil {
			return err
		}
		c.cleanups = append(c.cleanups, func() { listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				conn.Close()
			}
		}()
		return nil
	})
}

func (c *cluster) fill() (err error) {
	if err := c.create(node(), cidr()); err != nil {
		return err
	}
	if c.first, err = c.addAnswering(); err != nil {
		return err
	}
	for range c.size.services - 2 {
		if _, err := c.add(c.imaginaryEndpoints()); err != nil {
			return err
		}
	}
	c.last, err = c.addAnswering()
	return err
}

func (c *cluster) imaginaryEndpoints() (addrs []netip.AddrPort) {
	for range c.size.endpoints {
		c.lastEndpoint = c.lastEndpoint.Next()
		addrs = append(addrs, netip.AddrPortFrom(c.lastEndpoint, 8080))
	}
	return addrs
}

// addAnswering creates a Service whose endpoint answers, and returns its address.
func (c *cluster) addAnswering() (netip.AddrPort, error) { return c.add([]netip.AddrPort{answering}) }

func (c *cluster) add(endpoints []netip.AddrPort) (netip.AddrPort, error) {
	c.services++
	name := fmt.Sprintf("service-%d", c.services)
	base := serviceCIDR.Addr().As4()
	number := c.services + 10
	addr := netip.AddrFrom4([4]byte{base[0], base[1] + byte(number>>16), byte(number >> 8), byte(number)})
	at := netip.AddrPortFrom(addr, 80)
	return at, c.create(service(name, at), slice(name, endpoints))
}

func (c *cluster) create(objects ...apiservertest.Object) error {
	for _, o := range objects {
		if _, err := c.server.Create(o); err != nil {
			return err
		}
	}
	return nil
}

func node() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: lab.NodeName},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: lab.NodeAddrs.IPv4.String()}}},
	}
}

func cidr() *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{serviceCIDR.String()}},
	}
}

func service(name string, at netip.AddrPort) *corev1.Service {
	policy := corev1.ServiceInternalTrafficPolicyCluster
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: at.Addr().String(), ClusterIPs: []string{at.Addr().String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, InternalTrafficPolicy: &policy, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: int32(at.Port())}},
		},
	}
}

func slice(service string, endpoints []netip.AddrPort) *discoveryv1.EndpointSlice {
	name, protocol, port, ready := "http", corev1.ProtocolTCP, int32(endpoints[0].Port()), true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
	}
	for _, e := range endpoints {
		on := lab.RemoteName
		if e == answering {
			on = lab.NodeName
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{e.Addr().String()}, NodeName: &on, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
		})
	}
	return s
}
