package conformance

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What test/e2e/network/service.go tests of traffic policies, health checks, and pods that terminate.

func TestTrafficPolicy(t *testing.T) {
	t.Run("internal policy Local from a pod to a pod", testInternalPolicyLocalFromAPodToAPod)
	t.Run("internal policy Local from the node to a pod", testInternalPolicyLocalFromTheNodeToAPod)
	t.Run("internal policy Local to the host network", testInternalPolicyLocalToTheHostNetwork)
	t.Run("the health check fails when all local pods terminate", testHealthCheckFailsWhenAllLocalPodsTerminate)
	t.Run("terminating pods stand in under internal policy Cluster", testTerminatingPodsStandInUnderInternalPolicyCluster)
	t.Run("terminating local pods stand in under internal policy Local", testTerminatingLocalPodsStandInUnderInternalPolicyLocal)
	t.Run("terminating pods stand in under external policy Cluster", testTerminatingPodsStandInUnderExternalPolicyCluster)
	t.Run("terminating local pods stand in under external policy Local", testTerminatingLocalPodsStandInUnderExternalPolicyLocal)
	t.Run("node port and health check follow the external policy", testNodePortAndHealthCheckFollowTheExternalPolicy)
}

func testInternalPolicyLocalFromAPodToAPod(t *testing.T) {
	c := start(t)
	c.testInternalPolicyLocal(c.pod, c.runs("local", node1), c.runs("remote", node2))
}

func testInternalPolicyLocalFromTheNodeToAPod(t *testing.T) {
	c := start(t)
	c.testInternalPolicyLocal(c.node, c.runs("local", node1), c.runs("remote", node2))
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

func testTerminatingPodsStandInUnderInternalPolicyCluster(t *testing.T) {
	c := start(t)
	http := tcp(80)
	s := c.service("svc-proxy-terminating", ports(http.to(web)))
	for _, pod := range []*pod{c.runs("local", node1), c.runs("remote", node2)} {
		s.selects(pod)
		pod.terminates()
		c.pod.reaches(s.clusterIP(http), pod)
		c.node.reaches(s.clusterIP(http), pod)
	}
	ready := c.runs("ready", node2)
	s.selects(append(s.pods, ready)...)
	c.pod.reaches(s.clusterIP(http), ready)
}

func testTerminatingLocalPodsStandInUnderInternalPolicyLocal(t *testing.T) {
	c := start(t)
	http := tcp(80)
	s := c.service("svc-proxy-terminating", ports(http.to(web)), internalPolicy(corev1.ServiceInternalTrafficPolicyLocal))
	local, remote := c.runs("local", node1), c.runs("remote", node2)
	s.selects(local)
	local.terminates()
	c.pod.reaches(s.clusterIP(http), local)
	s.selects(remote)
	remote.terminates()
	c.pod.hearsNothing(s.clusterIP(http))
}

func testTerminatingPodsStandInUnderExternalPolicyCluster(t *testing.T) {
	c := start(t)
	http := tcp(80)
	s := c.service("svc-proxy-terminating", ports(http.to(web)), ofType(corev1.ServiceTypeNodePort))
	for _, pod := range []*pod{c.runs("local", node1), c.runs("remote", node2)} {
		s.selects(pod)
		pod.terminates()
		c.pod.reaches(s.nodePort(http), pod)
		c.peer.reaches(s.nodePort(http), pod)
	}
}

func testTerminatingLocalPodsStandInUnderExternalPolicyLocal(t *testing.T) {
	c := start(t)
	http := tcp(80)
	s := c.service("svc-proxy-terminating", ports(http.to(web)), ofType(corev1.ServiceTypeNodePort), externalPolicy(corev1.ServiceExternalTrafficPolicyLocal))
	local, remote := c.runs("local", node1), c.runs("remote", node2)
	s.selects(local)
	local.terminates()
	c.peer.reaches(s.nodePort(http), local)
	c.outside.reaches(s.nodePort(http), local)
	s.selects(remote)
	remote.terminates()
	c.peer.hearsNothing(s.nodePort(http))
	c.outside.hearsNothing(s.nodePort(http))
	c.pod.reaches(s.nodePort(http), remote) // As if it went out and came back.
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
