package conformance

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nftproxy/nftproxy/tracker"
)

// What test/e2e/network/service.go tests, in its order. For traffic policies and terminating
// pods see e2e_traffic_policy_test.go, for affinity e2e_affinity_test.go.

func TestService(t *testing.T) {
	t.Run("follows its pods", testServiceFollowsItsPods)
	t.Run("each port has its own pods", testEachPortHasItsOwnPods)
	t.Run("ports are added and deleted", testPortsAreAddedAndDeleted)
	t.Run("Services come and go", testServicesComeAndGo)
	t.Run("works after it was recreated", testServiceWorksAfterItWasRecreated)
	t.Run("Services work after a restart of the proxy", testServicesWorkAfterARestartOfTheProxy)
	t.Run("Services work after a restart of the API server", testServicesWorkAfterARestartOfTheAPIServer)
	t.Run("an ExternalName becomes a node port", testExternalNameBecomesANodePort)
	t.Run("a node port becomes an ExternalName", testNodePortBecomesAnExternalName)
	t.Run("a node port is free when its Service is deleted", testNodePortIsFreeWhenItsServiceIsDeleted)
	t.Run("Services of another proxy are left alone", testServicesOfAnotherProxyAreLeftAlone)
	t.Run("a proxy with a name takes its Services only", testProxyWithANameTakesItsServicesOnly)
	t.Run("headless slices are ignored", testHeadlessSlicesAreIgnored)
}

func testServiceFollowsItsPods(t *testing.T) {
	c := start(t)
	s := c.service("endpoint-test2", ports(tcp(80).to(web)))
	c.pod.isRefused(s.clusterIP(tcp(80)))
	pod1, pod2 := c.runs("pod1", node1), c.runs("pod2", node2)
	s.selects(pod1)
	c.pod.reaches(s.clusterIP(tcp(80)), pod1)
	s.selects(pod1, pod2)
	c.pod.reaches(s.clusterIP(tcp(80)), pod1, pod2)
	s.selects(pod2)
	c.pod.reaches(s.clusterIP(tcp(80)), pod2)
	s.selects()
	c.pod.isRefused(s.clusterIP(tcp(80)))
}

func testEachPortHasItsOwnPods(t *testing.T) {
	c := start(t)
	s := c.service("multi-endpoint-test", ports(tcp(80).to(web), tcp(81).to(admin)))
	pod1, pod2 := c.runs("pod1", node1), c.runs("pod2", node1)
	s.putSlices("a", map[string]int32{"tcp-80": web}, []*pod{pod1})
	s.putSlices("b", map[string]int32{"tcp-81": admin}, []*pod{pod2})
	c.pod.reaches(s.clusterIP(tcp(80)), pod1)
	c.pod.reaches(s.clusterIP(tcp(81)), pod2)
	s.putSlices("a", map[string]int32{"tcp-80": web}, nil)
	c.pod.isRefused(s.clusterIP(tcp(80)))
	c.pod.reaches(s.clusterIP(tcp(81)), pod2)
}

func testPortsAreAddedAndDeleted(t *testing.T) {
	c := start(t)
	s := c.service("edit-port-test", ports(tcp(80).to(web)))
	pod := c.runs("pod1", node1)
	s.selects(pod)
	c.pod.reaches(s.clusterIP(tcp(80)), pod)
	c.pod.isRefused(s.clusterIP(tcp(81)))
	s.update(ports(tcp(80).to(web), tcp(81).to(admin)))
	c.pod.reaches(s.clusterIP(tcp(80)), pod)
	c.pod.reaches(s.clusterIP(tcp(81)), pod)
	s.update(ports(tcp(80).to(web)))
	c.pod.reaches(s.clusterIP(tcp(80)), pod)
	c.pod.isRefused(s.clusterIP(tcp(81)))
}

func testServicesComeAndGo(t *testing.T) {
	c := start(t)
	http := tcp(80)
	pods := []*pod{c.runs("a", node1), c.runs("b", node1), c.runs("c", node2)}
	up := func(s *service) {
		t.Helper()
		c.node.reaches(s.clusterIP(http), pods...)
		c.pod.reaches(s.clusterIP(http), pods...)
	}
	service := func(name string) *service {
		s := c.service(name, ports(http.to(web)))
		s.selects(pods...)
		return s
	}
	first, second := service("up-down-1"), service("up-down-2")
	up(first)
	up(second)
	gone := first.clusterIP(http)
	first.delete()
	c.node.hearsNothing(gone)
	up(second)
	third := service("up-down-3")
	up(second)
	up(third)
}

func testServiceWorksAfterItWasRecreated(t *testing.T) {
	c := start(t)
	pod := c.runs("pod1", node1)
	first := c.service("service-deletion", ports(tcp(80).to(web)))
	first.selects(pod)
	address := first.clusterIP(tcp(80))
	c.pod.reaches(address, pod)
	first.delete()
	c.pod.hearsNothing(address)
	again := c.service("service-deletion", ports(tcp(80).to(web)))
	again.selects(pod)
	c.node.reaches(again.clusterIP(tcp(80)), pod)
	c.pod.reaches(again.clusterIP(tcp(80)), pod)
}

func testServicesWorkAfterARestartOfTheProxy(t *testing.T) {
	c, command := startWithCommand(t)
	http := tcp(80)
	pods := []*pod{c.runs("a", node1), c.runs("b", node2)}
	first, second := c.service("restart-proxy-1", ports(http.to(web))), c.service("restart-proxy-2", ports(http.to(web)))
	first.selects(pods...)
	c.pod.reaches(first.clusterIP(http), pods...)
	connection := c.pod.opens(first.clusterIP(http))

	command.stop()
	c.pod.reaches(first.clusterIP(http), pods...) // The rules stay.
	second.selects(pods[0])
	first.selects(pods[1])
	c.runCommand()
	c.pod.reaches(first.clusterIP(http), pods[1])
	c.node.reaches(first.clusterIP(http), pods[1])
	c.pod.reaches(second.clusterIP(http), pods[0])
	connection.works()
}

func testServicesWorkAfterARestartOfTheAPIServer(t *testing.T) {
	c := start(t)
	http := tcp(80)
	pods := []*pod{c.runs("a", node1), c.runs("b", node2)}
	first := c.service("restart-apiserver-1", ports(http.to(web)))
	first.selects(pods...)
	address := first.clusterIP(http)
	c.pod.reaches(address, pods...)
	c.server.Stop()
	c.pod.reaches(address, pods...)
	if err := c.server.Resume(); err != nil {
		t.Fatal(err)
	}
	second := c.service("restart-apiserver-2", ports(http.to(web)))
	second.selects(pods...)
	c.pod.reaches(address, pods...)
	c.pod.reaches(second.clusterIP(http), pods...)
}

func externalName(name string) change {
	return func(s *corev1.Service) { s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, name }
}

func testExternalNameBecomesANodePort(t *testing.T) {
	c := start(t)
	pod := c.runs("a", node1)
	s := c.service("externalname-service", externalName("foo.example.com"))
	s.update(externalName(""), ofType(corev1.ServiceTypeNodePort), ports(tcp(80).to(web)))
	s.selects(pod)
	c.pod.reaches(s.clusterIP(tcp(80)), pod)
	c.pod.reaches(s.nodePort(tcp(80)), pod)
}

func testNodePortBecomesAnExternalName(t *testing.T) {
	c := start(t)
	pod := c.runs("a", node1)
	s := c.service("nodeport-service", ports(tcp(80).to(web)), ofType(corev1.ServiceTypeNodePort))
	s.selects(pod)
	clusterIP, nodePort := s.clusterIP(tcp(80)), s.nodePort(tcp(80))
	c.pod.reaches(nodePort, pod)
	s.update(externalName("foo.example.com"))
	c.pod.hearsNothing(clusterIP)
	c.outside.isRefused(nodePort)
}

func testNodePortIsFreeWhenItsServiceIsDeleted(t *testing.T) {
	c := start(t)
	pod := c.runs("a", node1)
	first := c.service("nodeport-reuse", ports(tcp(80).to(web)), ofType(corev1.ServiceTypeNodePort))
	first.selects(pod)
	nodePort := first.nodePort(tcp(80))
	c.outside.reaches(nodePort, pod)
	first.delete()
	c.outside.isRefused(nodePort)
	// Nobody listens: a program of the node's own can.
	own := c.runsOnHostNetwork("own", node1)
	own.serve(nodePort.port)
	c.outside.reaches(nodePort, own)
	own.closeServers()
	again := c.service("nodeport-reuse-2", ports(tcp(80).to(web)), ofType(corev1.ServiceTypeNodePort), func(s *corev1.Service) {
		s.Spec.Ports[0].NodePort = int32(nodePort.port)
	})
	again.selects(pod)
	c.outside.reaches(nodePort, pod)
}

func testServicesOfAnotherProxyAreLeftAlone(t *testing.T) {
	c := start(t)
	http := tcp(80)
	pods := []*pod{c.runs("a", node1), c.runs("b", node2)}
	theirs := map[string]string{tracker.LabelServiceProxyName: "foo-bar"}
	disabled := c.service("service-proxy-disabled", ports(http.to(web)), labels(theirs))
	toggled := c.service("service-proxy-toggled", ports(http.to(web)))
	disabled.selects(pods...)
	toggled.selects(pods...)
	c.pod.reaches(toggled.clusterIP(http), pods...)
	c.pod.hearsNothing(disabled.clusterIP(http))
	toggled.update(labels(theirs))
	c.pod.hearsNothing(toggled.clusterIP(http))
	toggled.update(labels(nil))
	c.pod.reaches(toggled.clusterIP(http), pods...)
	c.catchesUp()
	c.pod.hearsNothing(disabled.clusterIP(http))
}

func testProxyWithANameTakesItsServicesOnly(t *testing.T) {
	c := startNamed(t, "foo-bar")
	http := tcp(80)
	pod := c.runs("a", node1)
	another := c.service("another", ports(http.to(web)), labels(map[string]string{tracker.LabelServiceProxyName: "foo"}))
	nobodys := c.service("nobodys", ports(http.to(web)))
	ours := c.service("ours", ports(http.to(web)), labels(map[string]string{tracker.LabelServiceProxyName: "foo-bar"}))
	for _, s := range []*service{another, nobodys, ours} {
		s.selects(pod)
	}
	c.pod.reaches(ours.clusterIP(http), pod) // The last of them.
	c.pod.hearsNothing(another.clusterIP(http))
	c.pod.hearsNothing(nobodys.clusterIP(http))
	nobodys.update(labels(map[string]string{tracker.LabelServiceProxyName: "foo-bar"}))
	c.pod.reaches(nobodys.clusterIP(http), pod)
}

func testHeadlessSlicesAreIgnored(t *testing.T) {
	c := start(t)
	s := c.service("example-custom-endpoints", ports(tcp(80).to(web)))
	pods := []*pod{c.runs("pod-handle-http-request", node1)}
	named := map[string]int32{"tcp-80": web}
	s.putSlices("custom", named, pods)
	c.pod.reaches(s.clusterIP(tcp(80)), pods...)
	s.putSlices("custom", named, pods, func(slice *discoveryv1.EndpointSlice) {
		slice.Labels[corev1.IsHeadlessService] = ""
	})
	c.node.isRefused(s.clusterIP(tcp(80)))
}
