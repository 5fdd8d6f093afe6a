// Package stress holds tests that send a lot of traffic while a lot changes.
package stress

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cluster is a lab with a proxy on its node, which gets the model from the test.
type cluster struct {
	*lab.Lab
	rules   *nft.Conn
	config  compiler.Config
	backend *proxy.Backend
	flows   *conntrack.Cleaner
	// searches counts the searches of the connection tracking table.
	searches int
}

// newCluster returns a cluster whose proxy has not synced yet.
func newCluster(t *testing.T, edits ...func(*compiler.Config)) *cluster {
	t.Helper()
	c := &cluster{Lab: lab.ForTest(t), config: compiler.Default()}
	c.config.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	for _, edit := range edits {
		edit(&c.config)
	}
	c.rules = lab.Conn(t, c.Node)
	c.restart(t)
	return c
}

// restart puts a new proxy in the place of the old one. It knows nothing yet.
func (c *cluster) restart(t *testing.T) {
	t.Helper()
	b, err := proxy.NewBackend(c.rules, c.config, proxy.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	c.flows, err = conntrack.NewCleaner(conntrack.CleanerOptions{
		NetNS:    int(c.Node.NetNS().Fd()),
		OnSearch: func(model.Family, conntrack.Stats, error) { c.searches++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	b.RemoveStaleFlows(c.flows)
	c.backend = b
}

// sync returns when the rules are as wanted and stale UDP flows are gone.
func (c *cluster) sync(t *testing.T, changes *model.Changes) {
	t.Helper()
	if err := c.backend.Sync(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	if err := c.flows.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// full is changes that say that the ports are all there are.
func full(ports ...*model.ServicePort) *model.Changes {
	changes := only(ports...)
	changes.Full = true
	changes.Node = &model.Node{Name: lab.NodeName, IPs: []netip.Addr{lab.NodeAddrs.IPv4, lab.NodeAddrs.IPv6}}
	changes.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}
	changes.ServiceCIDRsChanged = true
	return changes
}

// only is changes of the ports alone.
func only(ports ...*model.ServicePort) *model.Changes {
	return &model.Changes{Ports: model.PortsByID(ports...)}
}

// clusterIP returns the ClusterIP of that number.
func clusterIP(family model.Family, n byte) netip.Addr {
	if family == model.IPv6 {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 0, 0x96, 15: n})
	}
	return netip.AddrFrom4([4]byte{10, 96, 0, n})
}

// podIP returns the address of that number among the pods of node-1.
func podIP(family model.Family, n byte) netip.Addr {
	if family == model.IPv6 {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 0x02, 0x44, 0, 0x01, 15: n})
	}
	return netip.AddrFrom4([4]byte{10, 244, 1, n})
}

const targetPort = 8080

// endpoints are pods of node-1, by number.
func endpoints(family model.Family, numbers ...byte) (list []model.Endpoint) {
	for _, n := range numbers {
		list = append(list, model.Endpoint{AddrPort: netip.AddrPortFrom(podIP(family, n), targetPort), Local: true})
	}
	return list
}

// service returns a ClusterIP Service port of that number with those pods behind it.
func service(name string, protocol model.Protocol, family model.Family, number byte, pods ...byte) *model.ServicePort {
	p := &model.ServicePort{
		ID:        model.PortID{Namespace: "shop", Service: name, Protocol: protocol, Family: family},
		ClusterIP: clusterIP(family, number), Port: 80,
		Cluster: endpoints(family, pods...),
	}
	p.Local = p.Cluster
	if protocol == model.UDP {
		for _, e := range p.Cluster {
			p.Serving = append(p.Serving, e.AddrPort)
		}
	}
	return p
}

// patience bounds each wait for something that takes milliseconds on an idle machine.
const patience = 20 * time.Second

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
