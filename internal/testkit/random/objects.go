package random

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The bounds of Objects.
const (
	mostServices  = 4
	mostPorts     = 2
	mostSlices    = 2 // of a Service and family
	mostEndpoints = 4
)

const namespace = "random"

// Objects draws Services with their EndpointSlices, and ServiceCIDRs. An API server would take all of them: no two
// Services have the same ClusterIP or node port.
func (c Choose) Objects(places []*Place) (out manifests.Objects) {
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}
	for _, p := range places {
		for _, r := range Some(c, p.ServiceRanges, 1, netip.Prefix.Compare) {
			cidr.Spec.CIDRs = append(cidr.Spec.CIDRs, r.String())
		}
	}
	if len(cidr.Spec.CIDRs) > 0 {
		out.ServiceCIDRs = append(out.ServiceCIDRs, cidr)
	}
	for number := range 1 + c(mostServices) {
		of := places
		if len(places) > 1 && c.Maybe(2) {
			of = []*Place{One(c, places)}
		}
		s := c.service(number, of)
		out.Services = append(out.Services, s)
		missing := c(2 * len(of)) // the family, if there is one of that number, without endpoints
		for n, p := range of {
			if len(of) > 1 && n == missing {
				continue
			}
			for i := range c(mostSlices + 1) {
				out.EndpointSlices = append(out.EndpointSlices, c.slice(s, p, i))
			}
		}
	}
	return out
}

// service draws the Service of that number, from 0.
func (c Choose) service(number int, places []*Place) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: string(rune('a' + number))}}
	s.Spec.Type = One(c, []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer})
	balanced := s.Spec.Type == corev1.ServiceTypeLoadBalancer
	if balanced {
		s.Spec.AllocateLoadBalancerNodePorts = new(false)
	}
	guarded := balanced && c.Maybe(3)
	for _, p := range places {
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, p.clusterIPs[number].String())
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, texts(Some(c, p.externalIPs, 2, netip.Addr.Compare))...)
		if balanced {
			mode := corev1.LoadBalancerIPModeVIP
			if c.Maybe(6) {
				mode = corev1.LoadBalancerIPModeProxy
			}
			for _, ip := range texts(Some(c, p.loadBalancers, 2, netip.Addr.Compare)) {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip, IPMode: &mode})
			}
		}
		if guarded {
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, texts(Some(c, p.Sources, 3, netip.Prefix.Compare))...)
		}
	}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	s.Spec.Ports = c.ports(number, s.Spec.Type)
	if c.Maybe(3) {
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if external := s.Spec.Type != corev1.ServiceTypeClusterIP || len(s.Spec.ExternalIPs) > 0; external && c.Maybe(2) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if c.Maybe(3) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		if c.Maybe(2) { // the default is three hours
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(One(c, affinityTimeouts))}}
		}
	}
	return s
}

// affinityTimeouts, in seconds, are longer than a test takes to find out whether clients stay with an endpoint.
var affinityTimeouts = []int32{600, 86400}

func (c Choose) ports(number int, kind corev1.ServiceType) (ports []corev1.ServicePort) {
	for i := range 1 + c(mostPorts) {
		p := corev1.ServicePort{
			Name: fmt.Sprintf("port-%d", i), Protocol: corev1.Protocol(One(c, Protocols).String()),
			Port: int32(One(c, servicePorts)), TargetPort: intstr.FromInt32(int32(One(c, EndpointPorts))),
		}
		if slices.ContainsFunc(ports, func(o corev1.ServicePort) bool { return o.Port == p.Port && o.Protocol == p.Protocol }) {
			continue
		}
		if kind == corev1.ServiceTypeNodePort || kind == corev1.ServiceTypeLoadBalancer && !c.Maybe(3) {
			p.NodePort = int32(firstNodePort + mostPorts*number + i)
		}
		ports = append(ports, p)
	}
	return ports
}

func (c Choose) slice(s *corev1.Service, p *Place, number int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressType(p.Family.String())}
	slice.Namespace, slice.Name = s.Namespace, fmt.Sprintf("%s-%s-%d", s.Name, strings.ToLower(p.Family.String()), number)
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: s.Name}
	for _, port := range s.Spec.Ports {
		if c.Maybe(10) {
			continue // none of these endpoints has the port
		}
		target := port.TargetPort.IntVal
		if c.Maybe(4) {
			target = int32(One(c, EndpointPorts))
		}
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port.Name, Protocol: &port.Protocol, Port: &target})
	}
	hints := One(c, []hints{{}, {}, {}, {zones: true}, {nodes: true}, {zones: true, nodes: true}})
	for _, addr := range Some(c, p.Endpoints, mostEndpoints, netip.Addr.Compare) {
		slice.Endpoints = append(slice.Endpoints, c.endpoint(addr, p.nodeOf(addr), hints))
	}
	return slice
}

// hints says which hints the endpoints of a slice have. One in ten endpoints has none all the same, so that the hints of
// the others do not count.
type hints struct{ zones, nodes bool }

func (c Choose) endpoint(addr netip.Addr, node string, hinted hints) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{addr.String()}}
	zones := []string{"zone-a", "zone-b"}
	if node != "" {
		e.NodeName, e.Zone = &node, &zones[0]
		if node != lab.NodeName {
			e.Zone = &zones[1]
		}
	}
	e.Conditions = c.conditions()
	if hinted == (hints{}) || c.Maybe(10) {
		return e
	}
	e.Hints = &discoveryv1.EndpointHints{}
	if hinted.zones {
		e.Hints.ForZones = []discoveryv1.ForZone{{Name: One(c, zones)}}
	}
	if hinted.nodes {
		e.Hints.ForNodes = []discoveryv1.ForNode{{Name: One(c, []string{lab.NodeName, lab.RemoteName})}}
	}
	return e
}

// conditions draws those of an endpoint, as controllers write them: one that is ready and terminates is published though
// it is not ready.
func (c Choose) conditions() discoveryv1.EndpointConditions {
	switch {
	case c.Maybe(4):
		return discoveryv1.EndpointConditions{Ready: new(false), Serving: new(c.Maybe(2)), Terminating: new(c.Maybe(2))}
	case c.Maybe(10):
		return discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(true)}
	case c.Maybe(10):
		return discoveryv1.EndpointConditions{} // ready
	}
	return discoveryv1.EndpointConditions{Ready: new(true)}
}

func texts[T fmt.Stringer](list []T) (out []string) {
	for _, x := range list {
		out = append(out, x.String())
	}
	return out
}
