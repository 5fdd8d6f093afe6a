package conformance

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What test/e2e/network/service.go tests of traffic policies, health checks, and pods that terminate.

func TestTrafficPolicy(t *testing.T) {
	t.Run("internal policy Local to the host network", testInternalPolicyLocalToTheHostNetwork)
	t.Run("the health check fails when all local pods terminate", testHealthCheckFailsWhenAllLocalPodsTerminate)
	t.Run("node port and health check follow the external policy", testNodePortAndHealthCheckFollowTheExternalPolicy)
}

func testInternalPolicyLocalToTheHostNetwork(t *testing.T) {
	c := start(t)
	local, remote := c.runsOnHostNetwork("local", node1), c.runsOnHostNetwork("remote", node2)
	c.testInternalPolicyLocal(c.pod, local, remote)
	c.testInternalPolicyLocal(c.node, local, remote)
}

// testInternalPolicyLocal shows node1 once as the node with the endpoint and once as the other one.
func (c *cluster) testInternalPolicyLocal(from *client, local, remote *pod) {
	c.t.Helper()
	s := c.service("svc-itp-"+fmt.Sprint(c.clusterIPs), ports(tcp(80).to(web)), internalPolicy(corev1.ServiceInternalTrafficPolicyLocal))
	s.selects(local)
	from.reaches(s.clusterIP(tcp(80)), local)
	s.selects(remote)
	from.hearsNothing(s.clusterIP(tcp(80)))
	s.selects(local, remote)
	from.reaches(s.clusterIP(tcp(80)), local)
}

func testHealthCheckFailsWhenAllLocalPodsTerminate(t *testing.T) {
	c := start(t)
	http := tcp(80)
	s := c.service("svc-proxy-terminating", ports(http.to(web)), ofType(corev1.ServiceTypeLoadBalancer), externalPolicy(corev1.ServiceExternalTrafficPolicyLocal))
	pod := c.runs("echo-hostname-0", node1)
	s.selects(pod)
	c.pod.gets(s.healthCheck(), "/healthz", 200)
	pod.terminates()
	c.pod.gets(s.healthCheck(), "/healthz", 503)
	c.pod.reaches(s.nodePort(http), pod)
	c.outside.reaches(s.loadBalancerIP(http), pod)
}

func testNodePortAndHealthCheckFollowTheExternalPolicy(t *testing.T) {
	c := start(t)
	http := tcp(80)
	local, remote := c.runs("local", node1), c.runs("remote", node2)
	s := c.service("external-local-update", ports(http.to(web)), ofType(corev1.ServiceTypeLoadBalancer), externalPolicy(corev1.ServiceExternalTrafficPolicyLocal))
	underLocal := func() {
		t.Helper()
		s.selects(local)
		c.peer.gets(s.healthCheck(), "/", 200)
		c.peer.reaches(s.nodePort(http), local)
		c.peer.isSeenAsItself(s.nodePort(http))
		s.selects(remote)
		c.peer.gets(s.healthCheck(), "/", 503)
		c.node.reaches(s.nodePort(http), remote) // Short-circuited: the node itself is inside.
		c.peer.hearsNothing(s.nodePort(http))
	}
	underLocal()
	healthCheck := s.healthCheck()
	s.update(externalPolicy(corev1.ServiceExternalTrafficPolicyCluster))
	c.peer.isRefused(healthCheck)
	c.peer.reaches(s.nodePort(http), remote)
	c.node.reaches(s.nodePort(http), remote)
	c.outside.isMasqueraded(s.nodePort(http))
	s.update(externalPolicy(corev1.ServiceExternalTrafficPolicyLocal), func(s *corev1.Service) {
		s.Spec.HealthCheckNodePort = int32(healthCheck.port)
	})
	underLocal()
}

// Tests of test/e2e/network/traffic_distribution.go and pod_lifecycle.go. There clients in several zones look at one
// set of pods; here the clients are on node1 and the pods change.
func TestTrafficDistribution(t *testing.T) {
	t.Run("PreferSameNode falls back when the pod goes", testPreferSameNodeFallsBackWhenThePodGoes)
	t.Run("a blue-green switch fails no connection", testBlueGreenSwitchFailsNoConnection)
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
