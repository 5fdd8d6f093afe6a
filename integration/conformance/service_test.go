package conformance

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

const namespace = "e2e"

// service is a Service and the pods that it selects.
type service struct {
	c    *cluster
	name string
	pods []*pod
	// slices is the names of its EndpointSlices.
	slices map[string]bool
}

// change is something to do to a Service before it is stored.
type change func(*corev1.Service)

// service creates a Service. It has both IP families if no change says otherwise.
func (c *cluster) service(name string, changes ...change) *service {
	c.t.Helper()
	obj := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	for _, change := range changes {
		change(obj)
	}
	c.admit(obj)
	if _, err := c.api.CoreV1().Services(namespace).Create(c.t.Context(), obj, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return &service{c: c, name: name, slices: map[string]bool{}}
}

// get reads the Service back.
func (s *service) get() *corev1.Service {
	s.c.t.Helper()
	obj, err := s.c.api.CoreV1().Services(namespace).Get(s.c.t.Context(), s.name, metav1.GetOptions{})
	if err != nil {
		s.c.t.Fatal(err)
	}
	return obj
}

// update changes the Service, and then its slices if it selects pods.
func (s *service) update(changes ...change) {
	s.c.t.Helper()
	obj := s.get()
	for _, change := range changes {
		change(obj)
	}
	s.c.admit(obj)
	if _, err := s.c.api.CoreV1().Services(namespace).Update(s.c.t.Context(), obj, metav1.UpdateOptions{}); err != nil {
		s.c.t.Fatal(err)
	}
	if s.pods != nil {
		s.publish()
	}
}

// selects makes pods, and no others, the Service's endpoints.
func (s *service) selects(pods ...*pod) {
	s.c.t.Helper()
	s.pods = pods
	for _, p := range pods {
		p.services = append(p.services, s)
	}
	s.publish()
}

// delete removes the Service and with it its slices.
func (s *service) delete() {
	s.c.t.Helper()
	if err := s.c.api.CoreV1().Services(namespace).Delete(s.c.t.Context(), s.name, metav1.DeleteOptions{}); err != nil {
		s.c.t.Fatal(err)
	}
	for name := range s.slices {
		s.deleteSlice(name)
	}
	s.pods = nil
}

func (s *service) deleteSlice(name string) {
	s.c.t.Helper()
	if err := s.c.api.DiscoveryV1().EndpointSlices(namespace).Delete(s.c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		s.c.t.Fatal(err)
	}
	delete(s.slices, name)
}

// putSlices writes slices by hand, one in each family: pods serve the Service's ports, by
// name, at the given numbers.
func (s *service) putSlices(suffix string, ports map[string]int32, pods []*pod, changes ...func(*discoveryv1.EndpointSlice)) {
	s.c.t.Helper()
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		slice := s.emptySlice(suffix+"-"+string(family), family)
		for name, number := range ports {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &number})
		}
		for _, p := range pods {
			slice.Endpoints = append(slice.Endpoints, p.endpoint(&corev1.Service{}, family))
		}
		for _, change := range changes {
			change(slice)
		}
		s.put(slice)
	}
}

// port is a port number of a protocol.
type port struct {
	protocol corev1.Protocol
	number   int32
}

func tcp(number int32) port { return port{corev1.ProtocolTCP, number} }
func udp(number int32) port { return port{corev1.ProtocolUDP, number} }

// network returns the protocol's name in package net.
func (p port) network() string { return lower(string(p.protocol)) }

// to is a Service port, named after its protocol and number, that leads to a port of pods.
func (p port) to(target int32) corev1.ServicePort {
	return corev1.ServicePort{
		Name: p.name(), Protocol: p.protocol, Port: p.number, TargetPort: intstr.FromInt32(target),
	}
}

func (p port) name() string { return fmt.Sprintf("%s-%d", p.network(), p.number) }

func ports(list ...corev1.ServicePort) change {
	return func(s *corev1.Service) { s.Spec.Ports = list }
}

func ofType(t corev1.ServiceType) change {
	return func(s *corev1.Service) { s.Spec.Type = t }
}

func internalPolicy(p corev1.ServiceInternalTrafficPolicy) change {
	return func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &p }
}

func externalPolicy(p corev1.ServiceExternalTrafficPolicy) change {
	return func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = p }
}

func distribution(d string) change {
	return func(s *corev1.Service) { s.Spec.TrafficDistribution = &d }
}

func sourceRanges(ranges ...string) change {
	return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = ranges }
}

func labels(l map[string]string) change {
	return func(s *corev1.Service) { s.Labels = l }
}

// address is an address that clients dial, in one or both families, with a port.
type address struct {
	network string
	addrs   []netip.Addr
	port    uint16
}

func (a address) each() []netip.AddrPort {
	var list []netip.AddrPort
	for _, addr := range a.addrs {
		list = append(list, netip.AddrPortFrom(addr, a.port))
	}
	return list
}

func newAddress(p port, addrs ...string) address {
	a := address{network: p.network(), port: uint16(p.number)}
	for _, text := range addrs {
		a.addrs = append(a.addrs, netip.MustParseAddr(text))
	}
	return a
}

// only is the i-th of the addresses alone.
func (a address) only(i int) address {
	a.addrs = a.addrs[i : i+1]
	return a
}

// clusterIP is a port of the Service's ClusterIPs.
func (s *service) clusterIP(p port) address {
	s.c.t.Helper()
	return newAddress(p, s.get().Spec.ClusterIPs...)
}

// loadBalancerIP is a port of the Service's load balancer.
func (s *service) loadBalancerIP(p port) address {
	s.c.t.Helper()
	a := newAddress(p)
	for _, ingress := range s.get().Status.LoadBalancer.Ingress {
		a.addrs = append(a.addrs, netip.MustParseAddr(ingress.IP))
	}
	return a
}

// nodePort returns the address on which node1 answers for a port of the Service.
func (s *service) nodePort(p port) address {
	s.c.t.Helper()
	for _, servicePort := range s.get().Spec.Ports {
		if servicePort.Port == p.number && servicePort.Protocol == p.protocol {
			return onNode1(port{p.protocol, servicePort.NodePort})
		}
	}
	s.c.t.Fatalf("Service %s has no port %s", s.name, p.name())
	return address{}
}

// healthCheck returns the address on which node1 tells load balancers whether it has endpoints.
func (s *service) healthCheck() address {
	s.c.t.Helper()
	return onNode1(tcp(s.get().Spec.HealthCheckNodePort))
}

// onNode1 is a port of node1's own addresses.
func onNode1(p port) address {
	return newAddress(p, lab.NodeAddrs.IPv4.String(), lab.NodeAddrs.IPv6.String())
}

func lower(s string) string { return strings.ToLower(s) }
