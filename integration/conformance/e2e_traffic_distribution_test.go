package conformance

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What test/e2e/network/traffic_distribution.go and topology_hints.go test. There clients in
// several zones look at one set of pods; here the clients are on node1 and the pods change.

func TestTrafficDistribution(t *testing.T) {
	t.Run("PreferClose stays in the zone", testPreferCloseStaysInTheZone)
	t.Run("PreferSameZone stays in the zone", testPreferSameZoneStaysInTheZone)
	t.Run("PreferSameNode falls back to the zone", testPreferSameNodeFallsBackToTheZone)
	t.Run("PreferSameNode falls back when the pod goes", testPreferSameNodeFallsBackWhenThePodGoes)
	t.Run("a blue-green switch fails no connection", testBlueGreenSwitchFailsNoConnection)
}

func testPreferCloseStaysInTheZone(t *testing.T) {
	c := start(t)
	c.testSameZone(corev1.ServiceTrafficDistributionPreferClose)
}

func testPreferSameZoneStaysInTheZone(t *testing.T) {
	c := start(t)
	c.testSameZone(corev1.ServiceTrafficDistributionPreferSameZone)
}

func (c *cluster) testSameZone(d string) {
	c.t.Helper()
	http := tcp(80)
	here, neighbour := c.runs("here", node1), c.runs("neighbour", node3)
	far, further := c.runs("far", node2), c.runs("further", node2)
	s := c.service("traffic-dist-test-service", ports(http.to(web)), distribution(d))
	s.selects(here, far)
	c.pod.reaches(s.clusterIP(http), here)
	s.selects(here, neighbour, far) // Both nodes of the zone.
	c.pod.reaches(s.clusterIP(http), here, neighbour)
	c.node.reaches(s.clusterIP(http), here, neighbour)
	s.selects(neighbour, far) // The other node of the zone.
	c.pod.reaches(s.clusterIP(http), neighbour)
	s.selects(far, further) // Nobody in the zone.
	c.pod.reaches(s.clusterIP(http), far, further)
}

func testPreferSameNodeFallsBackToTheZone(t *testing.T) {
	c := start(t)
	http := tcp(80)
	here, neighbour, far := c.runs("here", node1), c.runs("neighbour", node3), c.runs("far", node2)
	s := c.service("traffic-dist-test-service", ports(http.to(web)), distribution(corev1.ServiceTrafficDistributionPreferSameNode))
	s.selects(here, neighbour, far)
	c.pod.reaches(s.clusterIP(http), here)
	s.selects(neighbour, far)
	c.pod.reaches(s.clusterIP(http), neighbour)
	s.selects(far)
	c.pod.reaches(s.clusterIP(http), far)
}

func testPreferSameNodeFallsBackWhenThePodGoes(t *testing.T) {
	c := start(t)
	http := tcp(80)
	here, far := c.runs("here", node1), c.runs("far", node2)
	s := c.service("traffic-dist-test-service", ports(http.to(web)), distribution(corev1.ServiceTrafficDistributionPreferSameNode))
	s.selects(here, far)
	c.pod.reaches(s.clusterIP(http), here)
	s.selects(far)
	c.pod.reaches(s.clusterIP(http), far)
	again := c.runs("server-0-new", node1)
	s.selects(again, far)
	c.pod.reaches(s.clusterIP(http), again)
	again.becomes(false)
	c.pod.reaches(s.clusterIP(http), far)
}

// What test/e2e/network/pod_lifecycle.go tests of a Service.
func testBlueGreenSwitchFailsNoConnection(t *testing.T) {
	c := start(t)
	http := tcp(80)
	blue, green := c.runs("blue-pod", node1), c.runs("green-pod", node2)
	green.becomes(false)
	s := c.service("blue-green-svc", ports(http.to(web)))
	s.selects(blue, green)
	c.pod.reaches(s.clusterIP(http), blue)
	stop := c.pod.connectsAllTheTime(s.clusterIP(http))
	for range 5 {
		green.becomes(true)
		blue.becomes(false)
		c.pod.reaches(s.clusterIP(http), green)
		blue.becomes(true)
		green.becomes(false)
		c.pod.reaches(s.clusterIP(http), blue)
	}
	stop()
}
