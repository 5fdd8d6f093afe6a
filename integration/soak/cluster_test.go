package soak

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/tracker"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const clusterCIDRs = "10.244.0.0/16,fd00:10:244::/48"

// A cluster is the objects in the API server. The anchors of testdata/manifests.yaml never change; all else does.
type cluster struct {
	t        *testing.T
	server   *apiservertest.Server
	random   *rand.Rand
	anchors  manifests.Objects
	node     *corev1.Node
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
}

func newCluster(t *testing.T, server *apiservertest.Server, random *rand.Rand) *cluster {
	t.Helper()
	c := &cluster{t: t, server: server, random: random, services: map[string]*corev1.Service{}, slices: map[string]*discoveryv1.EndpointSlice{}}
	c.anchors = lab.Upload(t, server, "testdata/manifests.yaml")
	c.node = c.anchors.Nodes[0]
	c.flap(true)
	return c
}

func (c *cluster) create(o apiservertest.Object) {
	c.t.Helper()
	lab.Create(c.t, c.server, o)
}

func (c *cluster) update(o apiservertest.Object) {
	c.t.Helper()
	lab.Update(c.t, c.server, o)
}

func (c *cluster) delete(o apiservertest.Object) {
	c.t.Helper()
	lab.Delete(c.t, c.server, o)
}

// wanted compiles the tables that the proxy should have by now.
func (c *cluster) wanted(t *testing.T) []*nft.Table {
	t.Helper()
	objects := manifests.Objects{Nodes: []*corev1.Node{c.node}, ServiceCIDRs: c.anchors.ServiceCIDRs}
	objects.Services = append(objects.Services, c.anchors.Services...)
	objects.EndpointSlices = append(objects.EndpointSlices, c.anchors.EndpointSlices...)
	for _, s := range c.services {
		objects.Services = append(objects.Services, s)
	}
	for _, s := range c.slices {
		objects.EndpointSlices = append(objects.EndpointSlices, s)
	}
	config := compiler.Default()
	config.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	tables, err := flows.Compile(&objects, tracker.Options{NodeName: lab.NodeName}, config)
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

func (c *cluster) changes() []kind {
	return []kind{
		{"a Service comes, changes or goes", 60, c.changeService},
		{"endpoints change", 60, c.changeEndpoints},
		{"the endpoints of the Service with lasting UDP clients change", 20, func() { c.flap(false) }},
		{"a label that nobody asked for", 10, c.relabel},
		{"the node's zone", 3, c.rezone},
	}
}

const (
	others        = 60
	mostEndpoints = 9
	// silentPort is a port on which nobody listens.
	silentPort = 9090
)

func (c *cluster) coin() bool { return c.random.IntN(2) == 0 }

func (c *cluster) changeService() {
	number := c.random.IntN(others)
	name := fmt.Sprint("other-", number)
	old := c.services[name]
	if old != nil && c.random.IntN(3) == 0 {
		c.delete(old)
		delete(c.services, name)
		for _, family := range []string{"IPv4", "IPv6"} {
			if slice := c.slices[name+"-"+family]; slice != nil {
				c.delete(slice)
				delete(c.slices, name+"-"+family)
			}
		}
		return
	}
	c.services[name] = c.randomService(name, number)
	if old == nil {
		c.create(c.services[name])
	} else {
		c.update(c.services[name])
	}
}

func (c *cluster) randomService(name string, number int) *corev1.Service {
	n := number + 1
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "churn", Name: name}}
	s.Spec = corev1.ServiceSpec{
		Type:       corev1.ServiceTypeClusterIP,
		ClusterIP:  fmt.Sprintf("10.96.1.%d", n),
		ClusterIPs: []string{fmt.Sprintf("10.96.1.%d", n), fmt.Sprintf("fd00:10:96::1:%d", n)},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		Ports: []corev1.ServicePort{
			{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: 80},
			{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80},
		},
	}
	if c.coin() {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = int32(31000 + n)
		}
		s.Spec.ExternalIPs = []string{fmt.Sprintf("203.0.113.%d", 1+n/2), fmt.Sprintf("2001:db8:ff01::%d", 1+n/2)} // two Services share one
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("203.0.113.%d", 100+n)}, {IP: fmt.Sprintf("2001:db8:ff02::%d", n)}}
		if c.coin() {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		for range c.random.IntN(4) {
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, fmt.Sprintf("198.18.%d.0/24", c.random.IntN(256)))
		}
	}
	if c.coin() {
		local := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &local
	}
	if c.coin() {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	return s
}

func (c *cluster) changeEndpoints() {
	name := fmt.Sprint("other-", c.random.IntN(others))
	family := []string{"IPv4", "IPv6"}[c.random.IntN(2)]
	slice := newSlice("churn", name, family, silentPort)
	for i := range c.random.IntN(mostEndpoints + 1) {
		slice.Endpoints = append(slice.Endpoints, c.randomEndpoint(family, 100+i))
	}
	c.setSlice(slice)
}

func (c *cluster) setSlice(slice *discoveryv1.EndpointSlice) {
	old := c.slices[slice.Name]
	c.slices[slice.Name] = slice
	if old == nil {
		c.create(slice)
	} else {
		c.update(slice)
	}
}

func newSlice(namespace, service, family string, port int32) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressType(family)}
	slice.Namespace, slice.Name = namespace, service+"-"+family
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	for _, p := range []struct {
		name     string
		protocol corev1.Protocol
	}{{"tcp", corev1.ProtocolTCP}, {"udp", corev1.ProtocolUDP}} {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.name, Protocol: &p.protocol, Port: &port})
	}
	return slice
}

func podAddress(family string, number int) string {
	if family == "IPv6" {
		return fmt.Sprintf("fd00:10:244:1::%d", number)
	}
	return fmt.Sprintf("10.244.1.%d", number)
}

func (c *cluster) randomEndpoint(family string, number int) discoveryv1.Endpoint {
	node, zone := []string{lab.NodeName, lab.RemoteName}[c.random.IntN(2)], []string{"zone-a", "zone-b"}[c.random.IntN(2)]
	ready, terminating := c.random.IntN(4) > 0, c.random.IntN(5) == 0
	e := discoveryv1.Endpoint{Addresses: []string{podAddress(family, number)}, NodeName: &node, Zone: &zone}
	e.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Terminating: &terminating}
	if c.coin() {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
	return e
}

// flapping is the Service whose endpoints change while UDP clients keep their sockets. All of its endpoints
// answer at any time.
const flapping = "flapping"

// flappers are the numbers of its pods.
var flappers = []int{21, 22, 23, 24}

// flap gives the Service other endpoints, at least one.
func (c *cluster) flap(first bool) {
	if first {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "churn", Name: flapping}}
		s.Spec = corev1.ServiceSpec{
			ClusterIP: "10.96.2.1", ClusterIPs: []string{"10.96.2.1", "fd00:10:96::2:1"},
			Type: corev1.ServiceTypeNodePort, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports: []corev1.ServicePort{{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80, NodePort: 32001}},
		}
		c.services[flapping] = s
		c.create(s)
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		slice := newSlice("churn", flapping, family, echoPort)
		for _, i := range c.random.Perm(len(flappers))[:1+c.random.IntN(len(flappers))] {
			node := lab.NodeName
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{podAddress(family, flappers[i])}, NodeName: &node})
		}
		c.setSlice(slice)
	}
}

// relabel changes what no proxy looks at.
func (c *cluster) relabel() {
	for _, s := range c.services {
		s = s.DeepCopy()
		s.Labels = map[string]string{"version": fmt.Sprint(c.random.Uint32())}
		c.services[s.Name] = s
		c.update(s)
		return
	}
}

func (c *cluster) rezone() {
	c.node = c.node.DeepCopy()
	c.node.Labels[corev1.LabelTopologyZone] = []string{"zone-a", "zone-b", "zone-c"}[c.random.IntN(3)]
	c.update(c.node)
}
