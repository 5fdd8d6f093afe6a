package conformance

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What test/e2e/network/conntrack.go tests. A client there sends a datagram every few seconds from one port; here it
// does so all the time, so that a packet always gets in between. The pods that cycle go on
// answering here, so that a flow to the wrong one is noticed and does not just time out.

// dns is a port that is spoken to over UDP.
var dns = udp(80)

// cycles shows that from one socket whichever pod serves now is reached.
func (c *cluster) cycles(s *service, exchange *exchange, pods ...*pod) {
	c.t.Helper()
	exchange.hearsNobody()
	s.selects(pods[0])
	exchange.hears(pods[0])
	for i, next := range pods[1:] {
		s.selects(pods[i], next)
		c.catchesUp()
		exchange.hears(pods[i]) // A flow stays with a pod that serves.
		s.selects(next)
		exchange.hears(next)
	}
}

func TestConntrack(t *testing.T) {
	t.Run("UDP follows the pod of a node port", testUDPFollowsThePodOfANodePort)
	t.Run("UDP follows the pod of a ClusterIP", testUDPFollowsThePodOfAClusterIP)
	t.Run("UDP follows the local pod of a ClusterIP", testUDPFollowsTheLocalPodOfAClusterIP)
	t.Run("UDP of the node follows the pod of a ClusterIP", testUDPOfTheNodeFollowsThePodOfAClusterIP)
	t.Run("UDP reaches a pod that becomes ready", testUDPReachesAPodThatBecomesReady)
	t.Run("a late segment does not reset a connection", testLateSegmentDoesNotResetAConnection)
	t.Run("no segment resets a connection with tcpBeLiberal", testNoSegmentResetsAConnectionWithTCPBeLiberal)
}

func testUDPFollowsThePodOfANodePort(t *testing.T) {
	c := start(t)
	s := c.service("svc-udp", ports(dns.to(web)), ofType(corev1.ServiceTypeNodePort))
	s.selects()
	c.cycles(s, c.peer.keepsSending(s.nodePort(dns)), c.runs("pod-server-1", node1), c.runs("pod-server-2", node1))
}

func testUDPFollowsThePodOfAClusterIP(t *testing.T) {
	c := start(t)
	s := c.service("svc-udp", ports(dns.to(web)))
	s.selects()
	c.cycles(s, c.pod.keepsSending(s.clusterIP(dns)), c.runs("pod-server-1", node2), c.runs("pod-server-2", node2))
}

func testUDPFollowsTheLocalPodOfAClusterIP(t *testing.T) {
	c := start(t)
	s := c.service("svc-udp", ports(dns.to(web)), internalPolicy(corev1.ServiceInternalTrafficPolicyLocal))
	first, elsewhere, again := c.runs("pod-server-1", node1), c.runs("pod-server-2", node2), c.runs("pod-server-3", node1)
	exchange := c.pod.keepsSending(s.clusterIP(dns))
	s.selects(first)
	exchange.hears(first)
	s.selects(first, elsewhere)
	c.catchesUp()
	exchange.hears(first)
	s.selects(elsewhere)
	exchange.hearsNobody() // Dropped now, which must not become an entry that outlives it.
	s.selects(elsewhere, again)
	exchange.hears(again)
}

func testUDPOfTheNodeFollowsThePodOfAClusterIP(t *testing.T) {
	c := start(t)
	s := c.service("svc-udp", ports(dns.to(web)))
	s.selects()
	c.cycles(s, c.node.keepsSending(s.clusterIP(dns)), c.runs("pod-server-1", node2), c.runs("pod-server-2", node2))
}

func testUDPReachesAPodThatBecomesReady(t *testing.T) {
	c := start(t)
	s := c.service("svc-udp", ports(dns.to(web)))
	pod := c.runs("pod-server-1", node2)
	pod.becomes(false)
	exchange := c.pod.keepsSending(s.clusterIP(dns))
	exchange.hearsNobody()
	s.selects(pod)
	c.catchesUp()
	exchange.hearsNobody()
	pod.becomes(true)
	exchange.hears(pod)
}

func testLateSegmentDoesNotResetAConnection(t *testing.T) {
	start(t).testStraySegments(late)
}

// Beyond the suite: the remedy for all other segments, and for older kernels.
func testNoSegmentResetsAConnectionWithTCPBeLiberal(t *testing.T) {
	c, _ := startWithCommand(t, "--conntrack-tcp-be-liberal")
	c.testStraySegments(late, ahead)
}

// testStraySegments shows that segments outside of the window end no connection. If one arrived
// from the pod's own address, its client would answer with a reset.
func (c *cluster) testStraySegments(offs ...int32) {
	c.t.Helper()
	s := c.service("boom-server", ports(tcp(9000).to(web)))
	server := c.runs("boom-server", node1)
	s.selects(server)
	c.pod.reaches(s.clusterIP(tcp(9000)), server)
	packets := server.listensToTCP()
	connection := c.pod.opens(s.clusterIP(tcp(9000)))
	connection.works()
	for _, off := range offs {
		packets.strays(connection, off)
		connection.works()
	}
}
