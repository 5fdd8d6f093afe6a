package conformance

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// controlPlane does what the e2e suite takes for granted and the API server of these tests does
// not do: it allocates addresses and node ports as kube-apiserver, provides load balancers as
// a cloud, and writes EndpointSlices as kube-controller-manager. A test uses it from one goroutine.
type controlPlane struct {
	clusterIPs, nodePorts, loadBalancers, lastPod int
}

// firstNodePort is the start of the default range of node ports.
const firstNodePort = 30000

// admit completes a Service before it is stored.
func (p *controlPlane) admit(s *corev1.Service) {
	if s.Spec.Type == "" {
		s.Spec.Type = corev1.ServiceTypeClusterIP
	}
	p.allocateClusterIPs(&s.Spec)
	p.allocateNodePorts(&s.Spec)
	p.allocateHealthCheckNodePort(&s.Spec)
	p.provideLoadBalancer(s)
}

func (p *controlPlane) allocateClusterIPs(spec *corev1.ServiceSpec) {
	if spec.Type == corev1.ServiceTypeExternalName {
		spec.ClusterIP, spec.ClusterIPs, spec.IPFamilies = "", nil, nil
		return
	}
	if spec.IPFamilies == nil {
		spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
	if spec.ClusterIP == "" {
		p.clusterIPs++
		for _, family := range spec.IPFamilies {
			spec.ClusterIPs = append(spec.ClusterIPs, numbered(family, "10.96.0.%d", "fd00:10:96::%d", p.clusterIPs))
		}
		spec.ClusterIP = spec.ClusterIPs[0]
	}
}

func (p *controlPlane) allocateNodePorts(spec *corev1.ServiceSpec) {
	wanted := spec.Type == corev1.ServiceTypeNodePort ||
		spec.Type == corev1.ServiceTypeLoadBalancer && (spec.AllocateLoadBalancerNodePorts == nil || *spec.AllocateLoadBalancerNodePorts)
	sameNumber := map[int32]int32{}
	for i := range spec.Ports {
		port := &spec.Ports[i]
		if !wanted {
			port.NodePort = 0
			continue
		}
		if port.NodePort == 0 {
			port.NodePort = sameNumber[port.Port]
		}
		if port.NodePort == 0 {
			port.NodePort = p.nextNodePort()
		}
		sameNumber[port.Port] = port.NodePort
	}
}

func (p *controlPlane) nextNodePort() int32 {
	p.nodePorts++
	return int32(firstNodePort + p.nodePorts)
}

func (p *controlPlane) allocateHealthCheckNodePort(spec *corev1.ServiceSpec) {
	wanted := spec.Type == corev1.ServiceTypeLoadBalancer && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	switch {
	case !wanted:
		spec.HealthCheckNodePort = 0
	case spec.HealthCheckNodePort == 0:
		spec.HealthCheckNodePort = p.nextNodePort()
	}
}

func (p *controlPlane) provideLoadBalancer(s *corev1.Service) {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		return
	}
	if s.Status.LoadBalancer.Ingress != nil {
		return
	}
	p.loadBalancers++
	for _, family := range s.Spec.IPFamilies {
		ip := numbered(family, "192.0.2.%d", "2001:db8:2::%d", p.loadBalancers)
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
}

// numbered returns the n-th address of a range.
func numbered(family corev1.IPFamily, ipv4, ipv6 string, n int) string {
	if family == corev1.IPv4Protocol {
		return fmt.Sprintf(ipv4, n)
	}
	return fmt.Sprintf(ipv6, n)
}

// publish writes one EndpointSlice in each family of the Service, with all its pods.
func (s *service) publish() {
	s.c.t.Helper()
	stored := s.get()
	for _, family := range stored.Spec.IPFamilies {
		s.put(s.sliceOf(stored, family))
	}
}

// put creates or replaces a slice.
func (s *service) put(slice *discoveryv1.EndpointSlice) {
	s.c.t.Helper()
	slices := s.c.api.DiscoveryV1().EndpointSlices(namespace)
	_, err := slices.Update(s.c.t.Context(), slice, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = slices.Create(s.c.t.Context(), slice, metav1.CreateOptions{})
	}
	if err != nil {
		s.c.t.Fatal(err)
	}
	s.slices[slice.Name] = true
}

func (s *service) sliceOf(stored *corev1.Service, family corev1.IPFamily) *discoveryv1.EndpointSlice {
	slice := s.emptySlice(string(family), family)
	for i := range stored.Spec.Ports {
		port := &stored.Spec.Ports[i]
		target := port.TargetPort.IntVal
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port.Name, Protocol: &port.Protocol, Port: &target})
	}
	for _, pod := range s.pods {
		slice.Endpoints = append(slice.Endpoints, pod.endpoint(stored, family))
	}
	return slice
}

func (s *service) emptySlice(suffix string, family corev1.IPFamily) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: s.name + "-" + lower(suffix),
			Labels: map[string]string{discoveryv1.LabelServiceName: s.name},
		},
		AddressType: discoveryv1.AddressType(family),
	}
}

// endpoint returns the pod's entry in a slice of a Service that selects the pod.
func (p *pod) endpoint(s *corev1.Service, family corev1.IPFamily) discoveryv1.Endpoint {
	ready := p.ready && !p.terminating
	serving, terminating, zone := p.ready, p.terminating, zoneOf[p.node]
	return discoveryv1.Endpoint{
		Addresses:  []string{p.addrs.Like(anyOf(family)).String()},
		NodeName:   &p.node,
		Zone:       &zone,
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		Hints:      p.hints(s.Spec.TrafficDistribution),
	}
}

// hints returns the topology hints that the pod gets from trafficDistribution (KEP-4444, KEP-3015).
func (p *pod) hints(distribution *string) *discoveryv1.EndpointHints {
	if distribution == nil {
		return nil
	}
	hints := &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zoneOf[p.node]}}}
	if *distribution == corev1.ServiceTrafficDistributionPreferSameNode {
		hints.ForNodes = []discoveryv1.ForNode{{Name: p.node}}
	}
	return hints
}

// anyOf returns some address of the family.
func anyOf(family corev1.IPFamily) netip.Addr {
	if family == corev1.IPv4Protocol {
		return lab.NodeAddrs.IPv4
	}
	return lab.NodeAddrs.IPv6
}
