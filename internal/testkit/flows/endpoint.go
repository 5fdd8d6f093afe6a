package flows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
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
	var endpoints []Endpoint
	for i, document := range bytes.Split(manifests, []byte("\n---")) {
		data, err := yaml.YAMLToJSON(afterMarker(document))
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		slices, err := slicesIn(data)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		for _, slice := range slices {
			endpoints = addSlice(endpoints, slice)
		}
	}
	return endpoints, nil
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

// slicesIn returns the EndpointSlice that an object is, or the ones that a list of objects holds.
func slicesIn(data []byte) ([]*discoveryv1.EndpointSlice, error) {
	var object struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(data, &object); err != nil {
		return nil, err
	}
	if object.Kind == "EndpointSlice" {
		slice := &discoveryv1.EndpointSlice{}
		return []*discoveryv1.EndpointSlice{slice}, json.Unmarshal(data, slice)
	}
	var all []*discoveryv1.EndpointSlice
	for i, item := range object.Items {
		slices, err := slicesIn(item)
		if err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
		all = append(all, slices...)
	}
	return all, nil
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
