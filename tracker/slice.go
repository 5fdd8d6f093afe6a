package tracker

import (
	"cmp"
	"errors"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/nftproxy/nftproxy/model"
)

// endpointSlice holds the parts of an EndpointSlice that the Tracker uses.
type endpointSlice struct {
	name objectName
	// serviceName is the Service that the slice belongs to, in its namespace; empty for none.
	serviceName string
	family      model.Family
	ports       []slicePort
	endpoints   []sliceEndpoint
	// nodes holds the nodes that endpoints name and that may have views, sorted.
	nodes []string
	// hints holds the different hints of the endpoints.
	hints []hint
	// infos has the info of each endpoint; nil without Options.Details.
	infos []model.EndpointInfo
	skips skipList
}

// service returns the name of the Service that the slice belongs to, if serviceName is not empty.
func (s *endpointSlice) service() objectName { return objectName{s.name.namespace, s.serviceName} }

// slicePort is the port on which the endpoints of a slice serve the Service port of that name.
type slicePort struct {
	name     string
	protocol model.Protocol
	number   uint16
}

// hint holds the zones (KEP-2433) and nodes (KEP-4444) that should use an endpoint. Either may be empty.
type hint struct {
	zones []string
	nodes []nodeCode
}

// nodeCode is the place of a node in a slice's nodes, counted from 1.
type nodeCode = uint32

const (
	noNode        nodeCode = 0
	unwatchedNode nodeCode = math.MaxUint32 // a node without a possible view
)

// sliceEndpoint is one endpoint. A cluster may have hundreds of thousands, so it is
// small and without pointers, which the garbage collector would follow.
type sliceEndpoint struct {
	// address is of the slice's family, an IPv4 address as netip.Addr.As16 maps it.
	address [16]byte
	// node is the endpoint's node.
	node nodeCode
	// hint is the place of the endpoint's hint in the slice's hints, counted from 1; 0 for none.
	hint uint32

	ready, serving, terminating bool
}

// addrOf returns the address of an endpoint of s.
func (s *endpointSlice) addrOf(e *sliceEndpoint) netip.Addr {
	addr := netip.AddrFrom16(e.address)
	if s.family == model.IPv4 {
		return addr.Unmap()
	}
	return addr
}

var noHint hint

// infoOf returns the info of the endpoint at i.
func (s *endpointSlice) infoOf(i int) (info model.EndpointInfo) {
	if s.infos != nil {
		info = s.infos[i]
	}
	return info
}

// codeOf returns the code of a node in s, noNode if no endpoint names it.
func (s *endpointSlice) codeOf(node string) nodeCode {
	if i, found := slices.BinarySearch(s.nodes, node); found {
		return nodeCode(i) + 1
	}
	return noNode
}

func (s *endpointSlice) equal(other *endpointSlice) bool {
	return s.name == other.name && s.serviceName == other.serviceName && s.family == other.family &&
		slices.Equal(s.ports, other.ports) &&
		slices.Equal(s.nodes, other.nodes) && slices.Equal(s.endpoints, other.endpoints) &&
		slices.EqualFunc(s.hints, other.hints, hint.equal) && slices.Equal(s.infos, other.infos) &&
		slices.Equal(s.skips, other.skips)
}

func (h hint) equal(other hint) bool {
	return slices.Equal(h.zones, other.zones) && slices.Equal(h.nodes, other.nodes)
}

// compareSlices orders the slices of one Service by name.
func compareSlices(a, b *endpointSlice) int { return cmp.Compare(a.name.name, b.name.name) }

// parseSlice reads an EndpointSlice. It never fails: it leaves out invalid parts and lists them in skips. A slice that
// no proxy uses (headless, FQDN, without a Service) has no service in the result. nodes are the nodes that may have
// views; nil means all nodes in the slice.
func parseSlice(obj *discoveryv1.EndpointSlice, nodes []string, details bool) *endpointSlice {
	s := &endpointSlice{name: objectName{obj.Namespace, obj.Name}}
	if _, headless := obj.Labels[corev1.IsHeadlessService]; headless || obj.Labels[discoveryv1.LabelServiceName] == "" {
		return s
	}
	switch obj.AddressType {
	case discoveryv1.AddressTypeIPv4:
		s.family = model.IPv4
	case discoveryv1.AddressTypeIPv6:
		s.family = model.IPv6
	case discoveryv1.AddressTypeFQDN:
		return s
	default:
		s.skips.add(ReasonMalformed, "addressType", string(obj.AddressType), errors.New("unknown address type"))
		return s
	}
	s.serviceName = obj.Labels[discoveryv1.LabelServiceName]
	s.parsePorts(obj.Ports)
	s.nodes = nodes
	if nodes == nil {
		s.nodes = nodesIn(obj.Endpoints)
	}
	s.parseEndpoints(obj.Endpoints, details)
	return s
}

func (s *endpointSlice) parsePorts(ports []discoveryv1.EndpointPort) {
	for i, port := range ports {
		text := string(ptr.Deref(port.Protocol, ""))
		protocol, err := model.ParseProtocol(text)
		if err != nil {
			s.skips.add(ReasonInvalidProtocol, indexed("ports", i)+".protocol", text, err)
			continue
		}
		if port.Port == nil {
			// "All ports" has no meaning for a Service (discovery/v1 EndpointPort).
			s.skips.add(ReasonInvalidPort, indexed("ports", i)+".port", "", errors.New("no port number"))
			continue
		}
		if *port.Port < 1 || *port.Port > math.MaxUint16 {
			s.skips.add(ReasonInvalidPort, indexed("ports", i)+".port", strconv.Itoa(int(*port.Port)), nil)
			continue
		}
		s.ports = append(s.ports, slicePort{ptr.Deref(port.Name, ""), protocol, uint16(*port.Port)})
	}
}

func (s *endpointSlice) parseEndpoints(endpoints []discoveryv1.Endpoint, details bool) {
	if len(endpoints) > 0 {
		s.endpoints = make([]sliceEndpoint, 0, len(endpoints))
	}
	for i := range endpoints {
		endpoint := &endpoints[i]
		if len(endpoint.Addresses) == 0 {
			s.skips.add(ReasonMalformed, indexed("endpoints", i)+".addresses", "", errors.New("no address"))
			continue
		}
		// All addresses of an endpoint are the same pod; consumers take the first (discovery/v1 Endpoint).
		text := endpoint.Addresses[0]
		addr, err := parseAddr(text)
		if err != nil {
			s.skips.add(ReasonInvalidIP, indexed("endpoints", i)+".addresses[0]", text, err)
			continue
		}
		if model.FamilyOf(addr) != s.family {
			s.skips.add(ReasonWrongFamily, indexed("endpoints", i)+".addresses[0]", text, nil)
			continue
		}
		if details {
			s.infos = append(s.infos, infoOf(endpoint))
		}
		s.endpoints = append(s.endpoints, s.parseEndpoint(addr, endpoint))
	}
}

func (s *endpointSlice) parseEndpoint(addr netip.Addr, endpoint *discoveryv1.Endpoint) sliceEndpoint {
	e := sliceEndpoint{
		address:     addr.As16(),
		ready:       ptr.Deref(endpoint.Conditions.Ready, true),
		serving:     ptr.Deref(endpoint.Conditions.Serving, true),
		terminating: ptr.Deref(endpoint.Conditions.Terminating, false),
	}
	// A Tracker without a node name does not tell which endpoints are on other nodes.
	if name := ptr.Deref(endpoint.NodeName, ""); name != "" && len(s.nodes) > 0 {
		e.node = s.parseNode(name)
	}
	if endpoint.Hints != nil {
		e.hint = s.hintIndex(endpoint.Hints)
	}
	return e
}

// parseNode returns the code of a node in an endpoint or a hint.
func (s *endpointSlice) parseNode(name string) nodeCode { return cmp.Or(s.codeOf(name), unwatchedNode) }

// nodesIn returns the names of all nodes of endpoints and of hints, sorted.
func nodesIn(endpoints []discoveryv1.Endpoint) []string {
	seen := map[string]struct{}{}
	for i := range endpoints {
		seen[ptr.Deref(endpoints[i].NodeName, "")] = struct{}{}
		if hints := endpoints[i].Hints; hints != nil {
			for _, node := range hints.ForNodes {
				seen[node.Name] = struct{}{}
			}
		}
	}
	delete(seen, "")
	names := make([]string, 0, len(seen))
	for name := range seen {
		// Interned: thousands of slices name the same nodes.
		names = append(names, unique.Make(name).Value())
	}
	slices.Sort(names)
	return names
}

// hintIndex returns the place of the hints in s.hints, counted from 1, and adds them if need be; 0 for none.
// There are about as many as zones or nodes, so a search costs little.
func (s *endpointSlice) hintIndex(hints *discoveryv1.EndpointHints) uint32 {
	if len(hints.ForZones) == 0 && len(hints.ForNodes) == 0 {
		return 0
	}
	var codes []nodeCode
	for _, node := range hints.ForNodes {
		if code := s.parseNode(node.Name); !slices.Contains(codes, code) {
			codes = append(codes, code)
		}
	}
	same := func(h hint) bool {
		return slices.Equal(h.nodes, codes) && slices.EqualFunc(h.zones, hints.ForZones, func(zone string, hint discoveryv1.ForZone) bool { return zone == hint.Name })
	}
	i := slices.IndexFunc(s.hints, same)
	if i < 0 {
		h := hint{nodes: codes}
		for _, zone := range hints.ForZones {
			h.zones = append(h.zones, zone.Name)
		}
		i = len(s.hints)
		s.hints = append(s.hints, h)
	}
	return uint32(i) + 1
}
