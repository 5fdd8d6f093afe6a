package stress

import (
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const namespace = "shop"

// makeService returns a dual-stack load balancer Service of that number: ClusterIPs, external
// and load balancer IPs, and node port all follow from it.
func makeService(name string, number byte, edits ...func(*corev1.Service)) *corev1.Service {
	var clusterIPs, externalIPs []string
	var ingress []corev1.LoadBalancerIngress
	for _, family := range model.Families {
		clusterIPs = append(clusterIPs, clusterIP(family, number).String())
		externalIPs = append(externalIPs, externalIP(family, number).String())
		ingress = append(ingress, corev1.LoadBalancerIngress{IP: balancerIP(family, number).String()})
	}
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{
			Type:      corev1.ServiceTypeLoadBalancer,
			ClusterIP: clusterIPs[0], ClusterIPs: clusterIPs, ExternalIPs: externalIPs,
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports:      []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: servicePort, NodePort: int32(nodePort(number))}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: ingress}},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

const servicePort = 80

func nodePort(number byte) uint16 { return 30000 + uint16(number) }

func externalIP(family model.Family, number byte) netip.Addr { return documentation(family, 1, number) }
func balancerIP(family model.Family, number byte) netip.Addr { return documentation(family, 2, number) }

// documentation returns an address outside the cluster, which the lab routes to node-1.
func documentation(family model.Family, network, number byte) netip.Addr {
	if family == model.IPv6 {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0xff, network, 15: number})
	}
	return netip.AddrFrom4([4]byte{203, 0, 113, 100*(network-1) + number})
}

func makeSlice(service string, family model.Family, port int32, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprint(service, "-", family),
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressType(family.String()),
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: new(port)}},
		Endpoints:   endpoints,
	}
}

func makeEndpoint(addr netip.Addr, node string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: new(node)}
}

func makeNode(zone string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lab.NodeName, Labels: map[string]string{}}}
	if zone != "" {
		n.Labels[corev1.LabelTopologyZone] = zone
	}
	for _, addr := range []netip.Addr{lab.NodeAddrs.IPv4, lab.NodeAddrs.IPv6} {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: addr.String()})
	}
	return n
}

func makeServiceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}
