package conformance

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// What test/e2e/network/loadbalancer.go tests, as far as node1 has to do with it: its load
// balancers send packets for the load balancer's IP to the node as they are (ipMode VIP).

func TestLoadBalancer(t *testing.T) {
	t.Run("type and ports of a TCP Service change", testTypeAndPortsOfATCPServiceChange)
	t.Run("type and ports of a UDP Service change", testTypeAndPortsOfAUDPServiceChange)
	t.Run("source ranges decide who may use it", testSourceRangesDecideWhoMayUseALoadBalancer)
	t.Run("UDP follows its pod to another node", testUDPFollowsThePodOfALoadBalancerToAnotherNode)
	t.Run("UDP follows its pod on its node", testUDPFollowsThePodOfALoadBalancerOnItsNode)
	t.Run("a rolling update under external policy Cluster", testRollingUpdateUnderExternalPolicyCluster)
	t.Run("a rolling update under external policy Local", testRollingUpdateUnderExternalPolicyLocal)
	t.Run("external policy Local preserves the client", testExternalPolicyLocalPreservesTheClientOfALoadBalancer)
	t.Run("external policy Local serves local pods only", testExternalPolicyLocalServesLocalPodsOnly)
}

func testTypeAndPortsOfATCPServiceChange(t *testing.T) {
	c := start(t)
	c.testTypeAndPortsChange(tcp(80), tcp(81))
}

func testTypeAndPortsOfAUDPServiceChange(t *testing.T) {
	c := start(t)
	c.testTypeAndPortsChange(udp(80), udp(81))
}

func (c *cluster) testTypeAndPortsChange(first, second port) {
	c.t.Helper()
	pod := c.runs("mutability-test", node1)
	s := c.service("mutability-test", ports(first.to(web)))
	s.selects(pod)
	c.pod.reaches(s.clusterIP(first), pod)
	s.update(ofType(corev1.ServiceTypeNodePort))
	c.outside.reaches(s.nodePort(first), pod)
	s.update(ofType(corev1.ServiceTypeLoadBalancer))
	c.outside.reaches(s.loadBalancerIP(first), pod)
	c.outside.reaches(s.nodePort(first), pod)

	before := s.nodePort(first)
	s.update(func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 32000 })
	c.outside.reaches(s.nodePort(first), pod)
	c.outside.isRefused(before)
	c.outside.reaches(s.loadBalancerIP(first), pod)

	s.update(func(s *corev1.Service) { s.Spec.Ports[0].Port = second.number })
	c.outside.reaches(s.loadBalancerIP(second), pod)
	c.outside.reaches(s.nodePort(second), pod)
	c.pod.isRefused(s.clusterIP(first))

	s.selects()
	c.outside.isRefused(s.loadBalancerIP(second))
	s.selects(pod)
	c.outside.reaches(s.loadBalancerIP(second), pod)

	nodePort, loadBalancerIP := s.nodePort(second), s.loadBalancerIP(second)
	s.update(ofType(corev1.ServiceTypeClusterIP))
	c.outside.hearsNothing(loadBalancerIP)
	c.outside.isRefused(nodePort)
	c.pod.reaches(s.clusterIP(second), pod)
}

func testSourceRangesDecideWhoMayUseALoadBalancer(t *testing.T) {
	c := start(t)
	http := tcp(80)
	server, accepted, dropped := c.runs("server", node1), c.runs("execpod-accept", node1), c.runs("execpod-drop", node2)
	s := c.service("lb-sourcerange", ports(http.to(web)), ofType(corev1.ServiceTypeLoadBalancer))
	s.selects(server)
	everybody := func() {
		t.Helper()
		for _, client := range []*client{c.outside, &accepted.client, &dropped.client} {
			client.reaches(s.loadBalancerIP(http), server)
		}
	}
	everybody()
	s.update(sourceRanges(accepted.addrs.IPv4.String()+"/32", accepted.addrs.IPv6.String()+"/128"))
	accepted.reaches(s.loadBalancerIP(http), server)
	dropped.hearsNothing(s.loadBalancerIP(http))
	c.outside.hearsNothing(s.loadBalancerIP(http))
	c.outside.reaches(s.nodePort(http), server)
	s.update(sourceRanges("0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"))
	everybody()
	s.update(sourceRanges("255.0.0.0/32", "ffff::/128"))
	for _, client := range []*client{c.outside, &accepted.client, &dropped.client} {
		client.hearsNothing(s.loadBalancerIP(http))
	}
	s.update(sourceRanges())
	everybody()
}

func testUDPFollowsThePodOfALoadBalancerToAnotherNode(t *testing.T) {
	c := start(t)
	s := c.service("svc-udp", ports(dns.to(web)), ofType(corev1.ServiceTypeLoadBalancer))
	s.selects()
	c.cycles(s, c.outside.keepsSending(s.loadBalancerIP(dns)), c.runs("hostname1", node1), c.runs("hostname2", node2))
}

func testUDPFollowsThePodOfALoadBalancerOnItsNode(t *testing.T) {
	c := start(t)
	s := c.service("svc-udp", ports(dns.to(web)), ofType(corev1.ServiceTypeLoadBalancer))
	s.selects()
	c.cycles(s, c.outside.keepsSending(s.loadBalancerIP(dns)), c.runs("hostname1", node1), c.runs("hostname2", node1))
}

func testRollingUpdateUnderExternalPolicyCluster(t *testing.T) {
	c := start(t)
	c.testRollingUpdate(corev1.ServiceExternalTrafficPolicyCluster)
}

func testRollingUpdateUnderExternalPolicyLocal(t *testing.T) {
	c := start(t)
	c.testRollingUpdate(corev1.ServiceExternalTrafficPolicyLocal)
}

// testRollingUpdate replaces one pod after another while clients connect all the time, each
// pod terminating before its successor is ready. Not one connection may fail.
func (c *cluster) testRollingUpdate(policy corev1.ServiceExternalTrafficPolicy) {
	c.t.Helper()
	http := tcp(80)
	s := c.service("test-lb-rolling-update", ports(http.to(web)), ofType(corev1.ServiceTypeLoadBalancer), externalPolicy(policy))
	old := c.runs("generation-0", node1)
	s.selects(old)
	c.outside.reaches(s.loadBalancerIP(http), old)
	stop := c.outside.connectsAllTheTime(s.loadBalancerIP(http))
	for i := range 5 {
		next := c.runs(fmt.Sprint("generation-", i+1), node1)
		next.becomes(false)
		s.selects(old, next)
		old.terminates()
		c.pod.reaches(s.loadBalancerIP(http), old)
		next.becomes(true)
		c.outside.reaches(s.loadBalancerIP(http), next)
		s.selects(next)
		old = next
	}
	stop()
}

// longestWait is more than a busy machine delays a packet. A client's repeated packets hide any shorter gap in the rules.
const longestWait = 10 * time.Second

// connectsAllTheTime makes connection after connection. The function that it returns ends that,
// and fails the test if one of them failed.
func (cl *client) connectsAllTheTime(to address) (stop func()) {
	cl.c.t.Helper()
	var made atomic.Int64
	var ended sync.WaitGroup
	done, targets := make(chan struct{}), cl.targets(to)
	failures := make([]error, len(targets))
	for i, to := range targets {
		ended.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, _, err := to.ask(longestWait); err != nil {
					failures[i] = fmt.Errorf("%s: %w", to, err)
					return
				}
				made.Add(1)
			}
		})
	}
	return func() {
		cl.c.t.Helper()
		close(done)
		ended.Wait()
		for _, err := range failures {
			if err != nil {
				cl.c.t.Errorf("after %d good connections one failed: %v", made.Load(), err)
			}
		}
	}
}

func testExternalPolicyLocalPreservesTheClientOfALoadBalancer(t *testing.T) {
	c := start(t)
	http := tcp(80)
	pod := c.runs("external-local-lb", node1)
	s := c.service("external-local-lb", ports(http.to(web)), ofType(corev1.ServiceTypeLoadBalancer), externalPolicy(corev1.ServiceExternalTrafficPolicyLocal))
	s.selects(pod)
	c.outside.reaches(s.loadBalancerIP(http), pod)
	c.outside.isSeenAsItself(s.loadBalancerIP(http))
	healthCheck := s.healthCheck()
	c.outside.gets(healthCheck, "/healthz", 200)
	s.update(externalPolicy(corev1.ServiceExternalTrafficPolicyCluster))
	c.outside.isMasqueraded(s.loadBalancerIP(http))
	s.update(ofType(corev1.ServiceTypeClusterIP))
	c.outside.isRefused(healthCheck)
}

func testExternalPolicyLocalServesLocalPodsOnly(t *testing.T) {
	c := start(t)
	http := tcp(8081)
	local, another, remote := c.runs("local", node1), c.runs("another", node1), c.runs("remote", node2)
	s := c.service("external-local-nodes", ports(http.to(web)), ofType(corev1.ServiceTypeLoadBalancer), externalPolicy(corev1.ServiceExternalTrafficPolicyLocal))
	s.selects(remote)
	c.outside.gets(s.healthCheck(), "/healthz", 503)
	c.outside.hearsNothing(s.loadBalancerIP(http))
	s.selects(local, remote)
	c.outside.gets(s.healthCheck(), "/healthz", 200)
	c.outside.reaches(s.loadBalancerIP(http), local)
	s.selects(local, another, remote)
	c.outside.reaches(s.loadBalancerIP(http), local, another)
}
