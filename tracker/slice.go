package tracker

import (
	"cmp"
	"errors"
	"math"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nftproxy/nftproxy/model"
)

// endpointSlice is what counts of one EndpointSlice.
type endpointSlice struct {
	name objectName
	// service is the Service that the slice belongs to; the zero value is none.
	service   objectName
	family    model.Family
	ports     []slicePort
	endpoints []sliceEndpoint
	// zones is the different lists of zones that endpoints are meant for, in the order of the endpoints.
	zones [][]string
	skips skipList
}

// slicePort is where the endpoints of a slice listen for the Service port of that name.
type slicePort struct {
	name     string
	protocol model.Protocol
	number   uint16
}

// sliceEndpoint is one endpoint as seen from this node. A cluster may have hundreds of thousands, so it is
// small and without pointers, which the garbage collector would follow.
type sliceEndpoint struct {
	// address is of the slice's family, an IPv4 address as netip.Addr.As16 maps it.
	address [16]byte
	// zones is where in the slice's zones those that the endpoint is meant for are, counted from 1; 0 is none.
	zones uint32

	// With neither set the slice names no node.
	local, remote bool

	ready, serving, terminating bool

	// nodeHinted says that the endpoint is meant for certain nodes, hintsThisNode that
	// this node is one of them. They are decided early because a node's name never changes.
	nodeHinted, hintsThisNode bool
}

// addrOf returns the address of an endpoint of s.
func (s *endpointSlice) addrOf(e *sliceEndpoint) netip.Addr {
	addr := netip.AddrFrom16(e.address)
	if s.family == model.IPv4 {
		return addr.Unmap()
	}
	return addr
}

// zonesOf returns the zones that an endpoint of s is meant for, if any.
func (s *endpointSlice) zonesOf(e *sliceEndpoint) []string {
	if e.zones == 0 {
		return nil
	}
	return s.zones[e.zones-1]
}

func (s *endpointSlice) equal(other *endpointSlice) bool {
	return s.name == other.name && s.service == other.service && s.family == other.family &&
		slices.Equal(s.ports, other.ports) &&
		slices.Equal(s.endpoints, other.endpoints) && slices.EqualFunc(s.zones, other.zones, slices.Equal) &&
		slices.Equal(s.skips, other.skips)
}

// compareSlices orders the slices of one Service by name.
func compareSlices(a, b *endpointSlice) int {
	return cmp.Compare(a.name.name, b.name.name)
}

// parseSlice takes from an EndpointSlice what this node needs. It never fails: what is
// invalid is left out and listed in skips. A slice that no proxy uses (headless, FQDN,
// without a Service) comes back without a service.
func parseSlice(obj *discoveryv1.EndpointSlice, nodeName string) *endpointSlice {
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
	s.service = objectName{obj.Namespace, obj.Labels[discoveryv1.LabelServiceName]}
	s.parsePorts(obj.Ports)
	s.parseEndpoints(obj.Endpoints, nodeName)
	return s
}

func (s *endpointSlice) parsePorts(ports []discoveryv1.EndpointPort) {
	for i, port := range ports {
		var p slicePort
		var protocol string
		if port.Name != nil {
			p.name = *port.Name
		}
		if port.Protocol != nil {
			protocol = string(*port.Protocol)
		}
		var err error
		if p.protocol, err = model.ParseProtocol(protocol); err != nil {
			s.skips.add(ReasonInvalidProtocol, indexed("ports", i)+".protocol", protocol, err)
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
		p.number = uint16(*port.Port)
		s.ports = append(s.ports, p)
	}
}

func (s *endpointSlice) parseEndpoints(endpoints []discoveryv1.Endpoint, nodeName string) {
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
		s.endpoints = append(s.endpoints, s.parseEndpoint(addr, endpoint, nodeName))
	}
}

func (s *endpointSlice) parseEndpoint(addr netip.Addr, endpoint *discoveryv1.Endpoint, nodeName string) sliceEndpoint {
	e := sliceEndpoint{address: addr.As16()}
	if nodeName != "" && endpoint.NodeName != nil && *endpoint.NodeName != "" {
		e.local = *endpoint.NodeName == nodeName
		e.remote = !e.local
	}
	e.ready = orElse(endpoint.Conditions.Ready, true)
	e.serving = orElse(endpoint.Conditions.Serving, true)
	e.terminating = orElse(endpoint.Conditions.Terminating, false)
	if endpoint.Hints == nil {
		return e
	}
	for _, node := range endpoint.Hints.ForNodes {
		e.nodeHinted = true
		e.hintsThisNode = e.hintsThisNode || nodeName != "" && node.Name == nodeName
	}
	e.zones = s.zonesIndex(endpoint.Hints.ForZones)
	return e
}

// zonesIndex returns where in s.zones the hinted zones are, counted from 1, and adds them if need be; 0 is none.
// There are about as many lists as zones, so a search costs little.
func (s *endpointSlice) zonesIndex(hints []discoveryv1.ForZone) uint32 {
	if len(hints) == 0 {
		return 0
	}
	same := func(zones []string) bool {
		return slices.EqualFunc(zones, hints, func(zone string, hint discoveryv1.ForZone) bool { return zone == hint.Name })
	}
	i := slices.IndexFunc(s.zones, same)
	if i < 0 {
		zones := make([]string, 0, len(hints))
		for _, hint := range hints {
			zones = append(zones, hint.Name)
		}
		i = len(s.zones)
		s.zones = append(s.zones, zones)
	}
	return uint32(i) + 1
}

// orElse returns what condition points at, or unset if it is nil.
func orElse(condition *bool, unset bool) bool {
	if condition == nil {
		return unset
	}
	return *condition
}
