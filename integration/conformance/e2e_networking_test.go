package conformance

import (
	"context"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/integration/flows"
	"github.com/nftproxy/nftproxy/integration/lab"
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
	t.Run("a pod reaches a Service", testPodReachesAService)
	t.Run("a node reaches a Service", testNodeReachesAService)
	t.Run("an endpoint reaches its Service", testEndpointReachesItsService)
	t.Run("SCTP reaches a Service", testSCTPReachesAService)
	t.Run("endpoints are updated", testEndpointsAreUpdated)
	t.Run("a node port goes with its Service", testNodePortGoesWithItsService)
	t.Run("large requests work", testLargeRequestsWork)
	t.Run("two Services of the same pods", testTwoServicesOfTheSamePods)
	t.Run("endpoints on the host network", testEndpointsOnTheHostNetwork)
	t.Run("a Service of one family", testServiceOfOneFamily)
	t.Run("one family of a Service goes", testOneFamilyOfAServiceGoes)
	t.Run("deleted rules come back", testDeletedRulesComeBack)
	t.Run("traffic to pods themselves is untouched", testTrafficToPodsThemselvesIsUntouched)
	t.Run("ClusterIPs of another ServiceCIDR", testClusterIPsOfAnotherServiceCIDR)
}

func testPodReachesAService(t *testing.T) {
	c := start(t)
	c.testReachesNettest(func(pods []*pod) *client { return c.pod })
}

func testNodeReachesAService(t *testing.T) {
	c := start(t)
	c.testReachesNettest(func(pods []*pod) *client { return c.node })
}

func testEndpointReachesItsService(t *testing.T) {
	c := start(t)
	c.testReachesNettest(func(pods []*pod) *client { return &pods[0].client })
}

func (c *cluster) testReachesNettest(from func(pods []*pod) *client) {
	c.t.Helper()
	pods := []*pod{c.runs("a", node1), c.runs("b", node1), c.runs("c", node2)}
	s := c.nettest(pods...)
	for _, p := range []port{tcp(80), udp(80)} {
		from(pods).reaches(s.clusterIP(p), pods...)
		from(pods).reaches(s.nodePort(p), pods...)
	}
}

func testSCTPReachesAService(t *testing.T) {
	c := start(t)
	s := c.service("sctp-endpoint-test", ports(sctp(5060).to(5060)), ofType(corev1.ServiceTypeNodePort))
	addrs := lab.Addrs{IPv4: netip.MustParseAddr("10.244.1.5"), IPv6: netip.MustParseAddr("fd00:10:244:1::5")}
	// SCTP is spoken by package flows, which runs the pod too.
	runner, err := flows.NewRunner(c.lab, []flows.Endpoint{
		{Addr: addrs.IPv4, Node: node1, Ports: []flows.Port{{Protocol: flows.SCTP, Number: 5060}}},
		{Addr: addrs.IPv6, Node: node1, Ports: []flows.Port{{Protocol: flows.SCTP, Number: 5060}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := runner.Close(); err != nil {
			t.Error(err)
		}
	}()
	expect := func(expected func(to netip.AddrPort) flows.Expectation) {
		t.Helper()
		var list []flows.Flow
		for _, a := range []address{s.clusterIP(sctp(5060)), s.nodePort(sctp(5060))} {
			for _, to := range a.each() {
				for _, from := range []flows.Origin{flows.FromClient, flows.FromNode} {
					list = append(list, flows.Flow{Name: string(from) + " to " + to.String(), From: from, To: to, Protocol: flows.SCTP, Expect: expected(to)})
				}
			}
		}
		c.eventually("SCTP", func() error { return runner.Run(list) })
	}
	refused := func(netip.AddrPort) flows.Expectation { return flows.Expectation{Result: flows.Refused} }
	expect(refused)
	s.selects(&pod{node: node1, addrs: addrs, ready: true})
	expect(func(to netip.AddrPort) flows.Expectation {
		return flows.Expectation{Endpoints: []netip.AddrPort{netip.AddrPortFrom(addrs.Like(to.Addr()), 5060)}}
	})
	s.selects()
	expect(refused)
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

func testEndpointsOnTheHostNetwork(t *testing.T) {
	c := start(t)
	pods := []*pod{c.runsOnHostNetwork("node-1-itself", node1), c.runsOnHostNetwork("node-2-itself", node2)}
	s := c.nettest(pods...)
	for _, client := range []*client{c.pod, c.node} {
		for _, p := range []port{tcp(80), udp(80)} {
			client.reaches(s.clusterIP(p), pods...)
			client.reaches(s.nodePort(p), pods...)
		}
	}
}

func testServiceOfOneFamily(t *testing.T) {
	c := start(t)
	pods := []*pod{c.runs("a", node1), c.runs("b", node2)}
	for name, list := range map[string][]corev1.IPFamily{
		"ipv4clusterip":     {corev1.IPv4Protocol},
		"ipv6clusterip":     {corev1.IPv6Protocol},
		"ipv4ipv6clusterip": {corev1.IPv4Protocol, corev1.IPv6Protocol},
		"ipv6ipv4clusterip": {corev1.IPv6Protocol, corev1.IPv4Protocol},
	} {
		s := c.service(name, ports(tcp(80).to(web), tcp(81).to(admin)), families(list...))
		s.selects(pods...)
		c.pod.reaches(s.clusterIP(tcp(80)), pods...)
		c.pod.reaches(s.clusterIP(tcp(81)), pods...)
		if n := len(s.clusterIP(tcp(80)).addrs); n != len(list) {
			t.Errorf("%s has %d ClusterIPs, want %d", name, n, len(list))
		}
	}
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

// What test/e2e/network/no_snat.go tests, and pod_lifecycle.go of pods that terminate.
func testTrafficToPodsThemselvesIsUntouched(t *testing.T) {
	c := start(t)
	local, remote := c.runs("local", node1), c.runs("remote", node2)
	s := c.nettest(local, remote)
	c.pod.reaches(s.clusterIP(tcp(80)), local, remote)
	untouched := func() {
		t.Helper()
		for _, pod := range []*pod{local, remote} {
			for _, client := range []*client{c.pod, c.outside, &local.client, &remote.client} {
				if client.name == pod.name {
					continue
				}
				to := newAddress(tcp(web), pod.addrs.IPv4.String(), pod.addrs.IPv6.String())
				client.reaches(to, pod)
				client.isSeenAsItself(to)
			}
		}
	}
	untouched()
	local.terminates()
	remote.terminates()
	untouched()
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
