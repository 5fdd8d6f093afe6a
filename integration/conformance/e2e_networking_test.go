package conformance

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
)

// What test/e2e/network/networking.go and dual_stack.go test. There each check is run once for
// the first and once for the second IP family of a Service; here every test checks both.

// nettest is the Service of those checks: one port number over TCP and UDP, with a node port.
func (c *cluster) nettest(pods ...*pod) *service {
	c.t.Helper()
	s := c.service("node-port-service", ports(tcp(80).to(web), udp(80).to(web)), ofType(corev1.ServiceTypeNodePort))
	s.selects(pods...)
	return s
}

func TestNetworking(t *testing.T) {
	t.Run("endpoints are updated", testEndpointsAreUpdated)
	t.Run("a node port goes with its Service", testNodePortGoesWithItsService)
	t.Run("large requests work", testLargeRequestsWork)
	t.Run("two Services of the same pods", testTwoServicesOfTheSamePods)
	t.Run("one family of a Service goes", testOneFamilyOfAServiceGoes)
	t.Run("deleted rules come back", testDeletedRulesComeBack)
	t.Run("ClusterIPs of another ServiceCIDR", testClusterIPsOfAnotherServiceCIDR)
}

func testEndpointsAreUpdated(t *testing.T) {
	c := start(t)
	pods := []*pod{c.runs("a", node1), c.runs("b", node1), c.runs("c", node2)}
	s := c.nettest(pods...)
	for _, p := range []port{tcp(80), udp(80)} {
		c.pod.reaches(s.clusterIP(p), pods...)
	}
	s.selects(pods[1:]...)
	pods[0].closeServers()
	for _, p := range []port{tcp(80), udp(80)} {
		c.pod.reaches(s.clusterIP(p), pods[1:]...)
	}
}

func testNodePortGoesWithItsService(t *testing.T) {
	c := start(t)
	pods := []*pod{c.runs("a", node1), c.runs("b", node2)}
	s := c.nettest(pods...)
	tcpPort, udpPort := s.nodePort(tcp(80)), s.nodePort(udp(80))
	for _, nodePort := range []address{tcpPort, udpPort} {
		c.node.reaches(nodePort, pods...)
	}
	s.delete()
	for _, nodePort := range []address{tcpPort, udpPort} {
		c.node.isRefused(nodePort)
	}
}

func testLargeRequestsWork(t *testing.T) {
	c := start(t)
	s := c.nettest(c.runs("a", node1), c.runs("b", node2))
	for _, p := range []port{tcp(80), udp(80)} {
		for range 8 {
			c.pod.getsBack(s.clusterIP(p), 2000)
		}
	}
}

func testTwoServicesOfTheSamePods(t *testing.T) {
	c := start(t)
	pods := []*pod{c.runs("a", node1), c.runs("b", node2)}
	first := c.service("node-port-service", ports(tcp(80).to(web)), ofType(corev1.ServiceTypeNodePort))
	second := c.service("second-node-port-service", ports(tcp(80).to(web)), ofType(corev1.ServiceTypeNodePort))
	first.selects(pods...)
	second.selects(pods...)
	for _, s := range []*service{first, second} {
		c.pod.reaches(s.clusterIP(tcp(80)), pods...)
		c.pod.reaches(s.nodePort(tcp(80)), pods...)
	}
	gone := second.clusterIP(tcp(80))
	second.delete()
	c.pod.hearsNothing(gone)
	c.pod.reaches(first.clusterIP(tcp(80)), pods...)
	c.pod.reaches(first.nodePort(tcp(80)), pods...)
}

func testOneFamilyOfAServiceGoes(t *testing.T) {
	c := start(t)
	pod := c.runs("a", node1)
	s := c.service("dual", ports(tcp(80).to(web)), ofType(corev1.ServiceTypeNodePort))
	s.selects(pod)
	both, nodePort := s.clusterIP(tcp(80)), s.nodePort(tcp(80))
	c.pod.reaches(both, pod)
	s.update(func(s *corev1.Service) {
		s.Spec.IPFamilies, s.Spec.ClusterIPs = s.Spec.IPFamilies[:1], s.Spec.ClusterIPs[:1]
	})
	c.pod.reaches(s.clusterIP(tcp(80)), pod)
	c.pod.hearsNothing(both.only(1))
	c.outside.reaches(nodePort.only(0), pod)
	c.outside.isRefused(nodePort.only(1))
}

func testDeletedRulesComeBack(t *testing.T) {
	c := start(t)
	pods := []*pod{c.runs("a", node1), c.runs("b", node2)}
	s := c.nettest(pods...)
	c.pod.reaches(s.clusterIP(tcp(80)), pods...)
	conn, err := nft.Dial(nft.Config{NetNS: int(c.lab.Node.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := proxy.Cleanup(context.Background(), conn, ""); err != nil {
		t.Fatal(err)
	}
	c.pod.reaches(s.clusterIP(tcp(80)), pods...)
	c.outside.reaches(s.nodePort(tcp(80)), pods...)
}

// What test/e2e/network/service_cidrs.go tests.
func testClusterIPsOfAnotherServiceCIDR(t *testing.T) {
	c := start(t)
	pods := []*pod{c.runs("a", node1), c.runs("b", node2)}
	c.serviceCIDR("test-svc-cidr", "10.196.196.0/24", "fd00:10:196::/112")
	s := c.service("cidr1-test", ports(tcp(80).to(web)), ofType(corev1.ServiceTypeNodePort), func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.196.196.77", []string{"10.196.196.77", "fd00:10:196::77"}
	})
	s.selects(pods...)
	c.pod.reaches(s.clusterIP(tcp(80)), pods...)
	c.pod.reaches(s.nodePort(tcp(80)), pods...)
	c.pod.hearsNothing(newAddress(tcp(80), "10.196.196.78", "fd00:10:196::78"))
}
