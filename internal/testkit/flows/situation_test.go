package flows

import (
	"net/netip"
	"testing"
)

func TestSituations(t *testing.T) {
	objects, err := Objects([]byte(`
apiVersion: v1
kind: Service
metadata: {name: a, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: b, namespace: shop}
spec: {clusterIP: 10.96.0.2, externalIPs: [10.96.0.1], ports: [{port: 81, nodePort: 30081}]}
---
apiVersion: v1
kind: Service
metadata: {name: c, namespace: shop}
spec: {clusterIP: 10.96.0.3, clusterIPs: [10.96.0.3, "fd00:10:96::3"], externalIPs: [192.0.2.2, 192.168.0.1], ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {ip: 192.0.2.2}, {hostname: c.example}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: b-1, namespace: shop, labels: {kubernetes.io/service-name: b}}
addressType: IPv4
endpoints:
- {addresses: [10.244.1.5], nodeName: node-1}
- {addresses: [10.244.2.6], nodeName: node-2}
- {addresses: [10.244.1.7]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: b-2, namespace: shop, labels: {kubernetes.io/service-name: b}}
addressType: IPv4
endpoints: [{addresses: [10.244.1.5], nodeName: node-1, conditions: {ready: false}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: c-1, namespace: shop, labels: {kubernetes.io/service-name: c}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.2.6], nodeName: node-2, conditions: {ready: true}}]
---
apiVersion: v1
kind: Service
metadata: {name: d, namespace: shop}
spec: {clusterIP: 10.96.0.4, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: d-1, namespace: shop, labels: {kubernetes.io/service-name: d}}
addressType: IPv4
ports: [{port: 30081}]
endpoints: [{addresses: [192.168.0.1], nodeName: node-1}]
---
apiVersion: v1
kind: Service
metadata: {name: e, namespace: shop}
spec: {clusterIP: 10.96.0.5, ports: [{port: 81}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: e-1, namespace: shop, labels: {kubernetes.io/service-name: e}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [192.168.0.1], nodeName: node-1}]
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		situation, from, to string
		want                bool
	}{
		{"several-claims", "client", "10.96.0.1:8080", true},
		{"several-claims", "client", "10.96.0.2:81", false},
		{"several-claims", "client", "10.96.0.3:80", false},
		{"several-claims", "client", "192.0.2.2:80", true},
		{"own-endpoint-elsewhere", "10.244.2.6", "10.96.0.3:80", true},
		{"own-endpoint-elsewhere", "10.244.1.7", "10.96.0.3:80", true},
		{"own-endpoint-elsewhere", "10.244.1.5", "10.96.0.2:81", false},
		{"own-endpoint-elsewhere", "client", "10.96.0.2:81", false},
		{"endpoint-twice", "client", "10.96.0.1:80", true},
		{"endpoint-twice", "outside", "192.168.0.1:30081", true},
		{"endpoint-twice", "client", "10.96.0.3:80", false}, // an endpoint of b alone has it
		{"endpoint-twice", "client", "192.0.2.1:80", false},
		{"endpoint-is-frontend", "client", "10.96.0.4:80", true},  // a node port
		{"endpoint-is-frontend", "client", "10.96.0.5:81", true},  // an external IP
		{"endpoint-is-frontend", "client", "10.96.0.3:80", false}, // a pod
	} {
		f := Flow{From: Origin(tt.from), To: netip.MustParseAddrPort(tt.to)}
		if got := situations[tt.situation](objects, f); got != tt.want {
			t.Errorf("%s from %s to %s: %t", tt.situation, tt.from, tt.to, got)
		}
	}
}
