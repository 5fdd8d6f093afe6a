package flows

import (
	"bytes"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
)

// Endpoint is an endpoint of EndpointSlices, ready or not.
type Endpoint struct {
	// Addr is its address.
	Addr netip.Addr
	// Node is the name of its node; empty if no slice names one.
	Node string
	// Ports are those that it serves, without duplicates.
	Ports []Port
}

// Port is a port that an endpoint serves.
type Port struct {
	// Protocol is TCP, UDP or SCTP.
	Protocol Protocol
	// Number is the port number.
	Number uint16
}

// Endpoints collects the endpoints of all EndpointSlices in manifests, which are YAML
// documents of any kind. It leaves out addresses that no host can have, as a proxy does:
// names, texts that are not addresses, loopback and the like.
func Endpoints(manifests []byte) ([]Endpoint, error) {
	objects, err := Objects(manifests)
	if err != nil {
		return nil, err
	}
	return EndpointsOf(objects), nil
}

// EndpointsOf is Endpoints for objects.
func EndpointsOf(objects []apiservertest.Object) (endpoints []Endpoint) {
	for _, object := range objects {
		if slice, ok := object.(*discoveryv1.EndpointSlice); ok {
			endpoints = addSlice(endpoints, slice)
		}
	}
	return endpoints
}

// documents splits YAML at its "---" lines, whose comments do not matter.
func documents(manifests []byte) (all [][]byte) {
	for document := range bytes.SplitSeq(manifests, []byte("\n---")) {
		all = append(all, afterMarker(document))
	}
	return all
}

// afterMarker cuts what is left of a "---" line at the start of a document, comment included.
func afterMarker(document []byte) []byte {
	if bytes.HasPrefix(document, []byte("---")) {
		document = document[len("---"):]
	}
	if line, rest, more := bytes.Cut(document, []byte("\n")); more && bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
		return rest
	}
	return document
}

func addSlice(endpoints []Endpoint, slice *discoveryv1.EndpointSlice) []Endpoint {
	ports := portsOf(slice)
	for _, endpoint := range slice.Endpoints {
		for _, text := range endpoint.Addresses {
			addr, err := netip.ParseAddr(text)
			if err != nil || !assignable(addr) {
				continue
			}
			endpoints = addAddr(endpoints, addr, endpoint.NodeName, ports)
		}
	}
	return endpoints
}

func addAddr(endpoints []Endpoint, addr netip.Addr, node *string, ports []Port) []Endpoint {
	at := slices.IndexFunc(endpoints, func(e Endpoint) bool { return e.Addr == addr })
	if at < 0 {
		at = len(endpoints)
		endpoints = append(endpoints, Endpoint{Addr: addr})
	}
	e := &endpoints[at]
	if e.Node == "" && node != nil {
		e.Node = *node
	}
	for _, port := range ports {
		if !slices.Contains(e.Ports, port) {
			e.Ports = append(e.Ports, port)
		}
	}
	return endpoints
}

func portsOf(slice *discoveryv1.EndpointSlice) []Port {
	var ports []Port
	for _, p := range slice.Ports {
		if p.Port == nil {
			continue
		}
		port := Port{Protocol: TCP, Number: uint16(*p.Port)}
		if p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			port.Protocol = Protocol(*p.Protocol)
		}
		ports = append(ports, port)
	}
	return ports
}

// assignable reports whether a host can have addr, and others reach it there.
func assignable(addr netip.Addr) bool {
	return addr.Zone() == "" && !addr.Is4In6() && !addr.IsUnspecified() &&
		!addr.IsLoopback() && !addr.IsMulticast() && !addr.IsLinkLocalUnicast()
}
