package conformance

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// What service.go, loadbalancer.go, networking.go and dual_stack.go test of session affinity.

// affinity makes clients stay with a pod for as long as they come back within some seconds.
func affinity(seconds int32) change {
	return func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

func noAffinity(s *corev1.Service) {
	s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
}

// The default of the API server, and a time that a test can wait for.
const (
	threeHours   = 10800
	shortTimeout = 2
)

func (c *cluster) threePods() []*pod {
	c.t.Helper()
	return []*pod{c.runs("a", node1), c.runs("b", node1), c.runs("c", node1)}
}

func TestAffinity(t *testing.T) {
	t.Run("of a ClusterIP times out", testAffinityOfAClusterIPTimesOut)
	t.Run("of a node port times out", testAffinityOfANodePortTimesOut)
	t.Run("of a ClusterIP is switched", testAffinityOfAClusterIPIsSwitched)
	t.Run("of a node port is switched", testAffinityOfANodePortIsSwitched)
	t.Run("of a load balancer is switched under external policy Local", testAffinityOfALoadBalancerIsSwitchedUnderExternalPolicyLocal)
	t.Run("of a load balancer is switched under external policy Cluster", testAffinityOfALoadBalancerIsSwitchedUnderExternalPolicyCluster)
	t.Run("lasts while its pod serves", testAffinityLastsWhileItsPodServes)
}

func testAffinityOfAClusterIPTimesOut(t *testing.T) {
	c := start(t)
	pods := c.threePods()
	s := c.service("affinity-clusterip-timeout", ports(tcp(80).to(web)), affinity(shortTimeout))
	s.selects(pods...)
	c.pod.sticks(s.clusterIP(tcp(80)), pods...)
	c.pod.changesAfter(shortTimeout*time.Second, s.clusterIP(tcp(80)))
}

func testAffinityOfANodePortTimesOut(t *testing.T) {
	c := start(t)
	pods := c.threePods()
	s := c.service("affinity-nodeport-timeout", ports(tcp(80).to(web)), affinity(shortTimeout), ofType(corev1.ServiceTypeNodePort))
	s.selects(pods...)
	c.pod.sticks(s.nodePort(tcp(80)), pods...)
	c.pod.changesAfter(shortTimeout*time.Second, s.nodePort(tcp(80)))
}

// changesAfter expects that a client that stays away for longer than timeout comes to another pod.
func (cl *client) changesAfter(timeout time.Duration, to address) {
	cl.c.t.Helper()
	cl.eventually(to, "changes pods after "+timeout.String(), func(to target) error {
		before, _, err := to.ask(answerTimeout)
		if err != nil {
			return err
		}
		time.Sleep(timeout + timeout/4) // The test needs the client's absence itself.
		after, _, err := to.ask(answerTimeout)
		if err == nil && after.pod == before.pod {
			err = fmt.Errorf("reached %s again", after.pod)
		}
		return err
	})
}

func testAffinityOfAClusterIPIsSwitched(t *testing.T) {
	c := start(t)
	s := c.service("affinity-clusterip-transition", ports(tcp(80).to(web)), affinity(threeHours))
	c.testAffinityIsSwitched(c.pod, s, s.clusterIP(tcp(80)))
}

func testAffinityOfANodePortIsSwitched(t *testing.T) {
	c := start(t)
	s := c.service("affinity-nodeport-transition", ports(tcp(80).to(web)), affinity(threeHours), ofType(corev1.ServiceTypeNodePort))
	c.testAffinityIsSwitched(c.pod, s, s.nodePort(tcp(80)))
}

func testAffinityOfALoadBalancerIsSwitchedUnderExternalPolicyLocal(t *testing.T) {
	c := start(t)
	s := c.affineLoadBalancer(corev1.ServiceExternalTrafficPolicyLocal)
	c.testAffinityIsSwitched(c.outside, s, s.loadBalancerIP(tcp(80)))
}

func testAffinityOfALoadBalancerIsSwitchedUnderExternalPolicyCluster(t *testing.T) {
	c := start(t)
	s := c.affineLoadBalancer(corev1.ServiceExternalTrafficPolicyCluster)
	c.testAffinityIsSwitched(c.outside, s, s.loadBalancerIP(tcp(80)))
}

func (c *cluster) affineLoadBalancer(policy corev1.ServiceExternalTrafficPolicy) *service {
	c.t.Helper()
	return c.service("affinity-lb", ports(tcp(80).to(web)), affinity(threeHours), ofType(corev1.ServiceTypeLoadBalancer), externalPolicy(policy))
}

func (c *cluster) testAffinityIsSwitched(from *client, s *service, to address) {
	c.t.Helper()
	pods := c.threePods()
	s.selects(pods...)
	from.sticks(to, pods...)
	s.update(noAffinity)
	from.reaches(to, pods...)
	s.update(affinity(threeHours))
	from.sticks(to, pods...)
}

// Beyond the suite: what an affinity is worth when pods change.
func testAffinityLastsWhileItsPodServes(t *testing.T) {
	c := start(t)
	s := c.service("affinity-clusterip", ports(tcp(80).to(web)), affinity(threeHours))
	first, others := c.runs("first", node1), c.threePods()
	s.selects(first)
	c.pod.reaches(s.clusterIP(tcp(80)), first)
	s.selects(append(others, first)...)
	c.catchesUp()
	c.pod.sticks(s.clusterIP(tcp(80)), first)
	first.becomes(false)
	c.pod.sticks(s.clusterIP(tcp(80)), others...)
}
