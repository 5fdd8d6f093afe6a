package flows

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEndpoints(t *testing.T) {
	t.Run("of all slices are merged", testEndpointsOfAllSlicesAreMerged)
}

func testEndpointsOfAllSlicesAreMerged(t *testing.T) {
	got, err := Endpoints([]byte(`--- # first
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: dns, port: 53, protocol: UDP}]
endpoints:
- {addresses: [10.244.1.5], nodeName: node-1}
- {addresses: [10.244.2.6], conditions: {ready: false}}
- {addresses: [010.244.1.7]}
- {addresses: [127.0.0.1]}
---
apiVersion: v1
kind: List
items:
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: web-2}
  addressType: IPv4
  ports: [{name: http, port: 8080}, {name: any}]
  endpoints: [{addresses: [10.244.1.5]}, {addresses: [10.244.2.6], nodeName: node-2}]
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: web-3}
  addressType: FQDN
  endpoints: [{addresses: [example.com]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	ports := []Port{{TCP, 8080}, {UDP, 53}}
	want := []Endpoint{
		{Addr: netip.MustParseAddr("10.244.1.5"), Node: "node-1", Ports: ports},
		{Addr: netip.MustParseAddr("10.244.2.6"), Node: "node-2", Ports: ports},
	}
	if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
		t.Errorf("Endpoints (-want +got):\n%s", diff)
	}
}
