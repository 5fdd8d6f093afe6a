package conformance

import "testing"

// What test/e2e/network/endpointslice.go and endpointslicemirroring.go test of a node's proxy.

func TestEndpointSlice(t *testing.T) {
	t.Run("several ports in several slices", testSeveralPortsInSeveralSlices)
	t.Run("several addresses in several slices", testSeveralAddressesInSeveralSlices)
}

func testSeveralPortsInSeveralSlices(t *testing.T) {
	c := start(t)
	s := c.service("example-custom-endpoints", ports(tcp(80).to(web), tcp(81).to(admin)))
	server := c.runs("pod-handle-http-request", node1)
	s.putSlices("custom-1", map[string]int32{"tcp-80": web}, []*pod{server})
	s.putSlices("custom-2", map[string]int32{"tcp-81": admin}, []*pod{server})
	c.pod.reaches(s.clusterIP(tcp(80)), server)
	c.pod.reaches(s.clusterIP(tcp(81)), server)
}

func testSeveralAddressesInSeveralSlices(t *testing.T) {
	c := start(t)
	s := c.service("example-custom-endpoints", ports(tcp(80).to(web), tcp(81).to(web)))
	pod1, pod2 := c.runs("pod1-handle-http-request", node1), c.runs("pod2-handle-http-request", node1)
	s.putSlices("custom-1", map[string]int32{"tcp-80": web}, []*pod{pod1})
	s.putSlices("custom-2", map[string]int32{"tcp-81": web}, []*pod{pod2})
	c.pod.reaches(s.clusterIP(tcp(80)), pod1)
	c.pod.reaches(s.clusterIP(tcp(81)), pod2)
	// The same port in both: all of them serve it.
	s.putSlices("custom-2", map[string]int32{"tcp-80": web}, []*pod{pod2})
	c.pod.reaches(s.clusterIP(tcp(80)), pod1, pod2)
}
