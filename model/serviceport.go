package model

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
	"unique"
)

// PortID names one port of one Service in one IP family.
type PortID struct {
	// Namespace and Service are the namespace and the name of the Service object.
	Namespace, Service string
	// Port is the name of the port. It may be empty if the Service has only one port.
	Port string
	// Protocol is TCP, UDP or SCTP. A port number may exist once for each.
	Protocol Protocol
	// Family is the family of the ClusterIP. A dual-stack Service has a PortID for each family.
	Family Family
}

// String returns "namespace/service:port/PROTOCOL (family)", without ":port" when the port has no name.
func (id PortID) String() string {
	return fmt.Sprintf("%s/%s (%s)", id.ServicePortName(), id.Protocol, id.Family)
}

// ServicePortName returns "namespace/service:port", or "namespace/service" when the
// port has no name: the spelling that kube-proxy uses in logs and rule comments.
func (id PortID) ServicePortName() string {
	if id.Port == "" {
		return id.Namespace + "/" + id.Service
	}
	return id.Namespace + "/" + id.Service + ":" + id.Port
}

// Compare orders PortIDs by namespace, Service, port name, protocol and family.
func (id PortID) Compare(other PortID) int {
	return cmp.Or(
		cmp.Compare(id.Namespace, other.Namespace),
		cmp.Compare(id.Service, other.Service),
		cmp.Compare(id.Port, other.Port),
		cmp.Compare(id.Protocol, other.Protocol),
		cmp.Compare(id.Family, other.Family),
	)
}

// TrafficPolicy says whether all endpoints or only those on this node serve a kind of
// traffic (KEP-2086 for internal traffic). The zero value is PolicyCluster.
type TrafficPolicy uint8

// The traffic policies.
const (
	// PolicyCluster sends traffic to the Cluster list of a ServicePort.
	PolicyCluster TrafficPolicy = iota
	// PolicyLocal sends traffic to the Local list of a ServicePort.
	PolicyLocal
)

// String returns "Cluster" or "Local", Kubernetes' own spelling.
func (p TrafficPolicy) String() string {
	if p == PolicyLocal {
		return "Local"
	}
	return "Cluster"
}

// ServiceType is the type of a Service (spec.type), whose consequences are in the other fields of a ServicePort. The
// zero value is an unknown type.
type ServiceType uint8

// The types of a Service that has a ClusterIP (core/v1 ServiceType).
const (
	TypeClusterIP ServiceType = iota + 1
	TypeNodePort
	TypeLoadBalancer
)

// String returns "ClusterIP", "NodePort" or "LoadBalancer", Kubernetes' own spelling, and "" for an unknown type.
func (t ServiceType) String() string {
	switch t {
	case TypeClusterIP:
		return "ClusterIP"
	case TypeNodePort:
		return "NodePort"
	case TypeLoadBalancer:
		return "LoadBalancer"
	}
	return ""
}

// ServiceKeys names labels and annotations of Services by their keys.
type ServiceKeys struct {
	Labels, Annotations []string
}

// Empty reports whether k names nothing.
func (k ServiceKeys) Empty() bool { return len(k.Labels) == 0 && len(k.Annotations) == 0 }

// ServicePort is one port of one Service in one IP family, with the endpoints for this node. All
// addresses are of the family in ID. Lists are sorted, have no duplicates, and are nil if empty.
type ServicePort struct {
	// ID names the port.
	ID PortID

	// ClusterIP is the address that clients in the cluster dial.
	ClusterIP netip.Addr
	// Port is the port on ClusterIP, ExternalIPs and LoadBalancerIPs.
	Port uint16
	// NodePort is the port on the node's own addresses; 0 means none.
	NodePort uint16
	// ExternalIPs is spec.externalIPs of the family.
	ExternalIPs []netip.Addr
	// LoadBalancerIPs is status.loadBalancer.ingress of the family, without addresses of ipMode Proxy (KEP-1860).
	LoadBalancerIPs []netip.Addr
	// LoadBalancerSourceRanges are the sources that may dial LoadBalancerIPs; nil means all. They count for each family
	// separately: a Service may restrict IPv4 and leave IPv6 open.
	LoadBalancerSourceRanges []netip.Prefix

	// AffinityTimeout is the time for which a client stays with its endpoint after its last new
	// connection (sessionAffinity ClientIP), in whole seconds; 0 means no affinity.
	AffinityTimeout time.Duration
	// InternalPolicy is for the ClusterIP, ExternalPolicy for all other addresses.
	InternalPolicy, ExternalPolicy TrafficPolicy
	// DirectReturn says that ExternalIPs and LoadBalancerIPs should keep the client's address on its way to endpoints
	// of other nodes (annotation nftproxy.io/direct-return). Cluster is then the same for all nodes, without topology.
	DirectReturn bool
	// Creation orders the Service ports with DirectReturn; nil for all others.
	Creation *Creation
	// HealthCheckNodePort is the port on which load balancers probe for local endpoints; 0 means none.
	HealthCheckNodePort uint16

	// Cluster holds the endpoints for policy Cluster: readiness, the fallback to terminating
	// endpoints (KEP-1669) and topology (KEP-2433, KEP-4444) are already applied.
	Cluster []Endpoint
	// Local holds the endpoints on this node for policy Local: readiness and the fallback are
	// applied, topology never is. It is nil if both policies are Cluster.
	Local []Endpoint
	// LocalTerminating says that Local is the fallback. The server on HealthCheckNodePort then counts
	// no local endpoint, so that load balancers choose other nodes (KEP-1669).
	LocalTerminating bool
	// Serving holds every endpoint that serves. Some are in no list, because of topology or because they terminate, but
	// existing flows to them stay. It is nil for protocols other than UDP, unless DirectReturn is set.
	Serving []netip.AddrPort
	// NotServing holds the endpoints that EndpointSlices list while none serves: existing flows to them may stay until
	// one serves. It is nil if Serving has endpoints, and where Serving is nil by definition.
	NotServing []netip.AddrPort

	// The fields below are for backends that forward requests. A client of a node-local server sets them, and a tracker
	// with the option Details.

	// AppProtocol is the application protocol of the port (spec.ports[].appProtocol), such as "http" or
	// "kubernetes.io/h2c", or empty.
	AppProtocol string
	// ServiceType is the type of the Service (spec.type).
	ServiceType ServiceType
	// ServiceLabels and ServiceAnnotations are labels and annotations of the Service. A client of a node-local server
	// gets those whose keys it requests. The maps are shared and must not be modified.
	ServiceLabels, ServiceAnnotations map[string]string
}

// Creation is the time at which a Service was created, and its UID, which the API server chooses.
type Creation struct {
	Time time.Time
	UID  string
}

// Compare orders creations by time, then by UID. Nil comes first.
func (c *Creation) Compare(other *Creation) int {
	switch {
	case c == nil && other == nil:
		return 0
	case c == nil:
		return -1
	case other == nil:
		return 1
	}
	return cmp.Or(c.Time.Compare(other.Time), cmp.Compare(c.UID, other.UID))
}

// KeepsFlow reports whether an existing UDP flow to an endpoint may stay: the endpoint serves, or it is listed while no
// endpoint serves.
func (p *ServicePort) KeepsFlow(endpoint netip.AddrPort) bool {
	_, serves := slices.BinarySearchFunc(p.Serving, endpoint, netip.AddrPort.Compare)
	_, listed := slices.BinarySearchFunc(p.NotServing, endpoint, netip.AddrPort.Compare)
	return serves || listed
}

// Addresses counts the elements of all lists of p. An endpoint in two lists counts twice. Each 64 bytes of labels and
// annotations count as one address. Limits of the node-local API count addresses.
func (p *ServicePort) Addresses() int {
	return len(p.ExternalIPs) + len(p.LoadBalancerIPs) + len(p.LoadBalancerSourceRanges) +
		len(p.Cluster) + len(p.Local) + len(p.Serving) + len(p.NotServing) +
		(bytesOf(p.ServiceLabels)+bytesOf(p.ServiceAnnotations))/64
}

func bytesOf(values map[string]string) (n int) {
	for key, value := range values {
		n += len(key) + len(value)
	}
	return n
}

// Equal reports whether a backend would see no difference between p and other. Two nil ports are equal.
func (p *ServicePort) Equal(other *ServicePort) bool {
	return p == other || p.equalWithoutKeys(other) &&
		maps.Equal(p.ServiceLabels, other.ServiceLabels) && maps.Equal(p.ServiceAnnotations, other.ServiceAnnotations)
}

// EqualFor is Equal for a backend that uses only the labels and annotations with the keys.
func (p *ServicePort) EqualFor(other *ServicePort, keys ServiceKeys) bool {
	return p == other || p.equalWithoutKeys(other) &&
		sameAt(keys.Labels, p.ServiceLabels, other.ServiceLabels) && sameAt(keys.Annotations, p.ServiceAnnotations, other.ServiceAnnotations)
}

// sameAt reports whether two maps have the same values at the keys.
func sameAt(keys []string, a, b map[string]string) bool {
	for _, key := range keys {
		valueA, inA := a[key]
		valueB, inB := b[key]
		if inA != inB || valueA != valueB {
			return false
		}
	}
	return true
}

// equalWithoutKeys is Equal without labels and annotations, and false if either is nil. It needs no reflection, because
// trackers and backends call it for every port that an event touches.
func (p *ServicePort) equalWithoutKeys(other *ServicePort) bool {
	return p != nil && other != nil && p.ID == other.ID &&
		p.ClusterIP == other.ClusterIP && p.Port == other.Port && p.NodePort == other.NodePort &&
		slices.Equal(p.ExternalIPs, other.ExternalIPs) &&
		slices.Equal(p.LoadBalancerIPs, other.LoadBalancerIPs) &&
		slices.Equal(p.LoadBalancerSourceRanges, other.LoadBalancerSourceRanges) &&
		p.AffinityTimeout == other.AffinityTimeout &&
		p.InternalPolicy == other.InternalPolicy && p.ExternalPolicy == other.ExternalPolicy &&
		p.DirectReturn == other.DirectReturn && p.Creation.Compare(other.Creation) == 0 && p.HealthCheckNodePort == other.HealthCheckNodePort &&
		slices.Equal(p.Cluster, other.Cluster) &&
		slices.Equal(p.Local, other.Local) && p.LocalTerminating == other.LocalTerminating &&
		slices.Equal(p.Serving, other.Serving) && slices.Equal(p.NotServing, other.NotServing) &&
		p.AppProtocol == other.AppProtocol && p.ServiceType == other.ServiceType
}

// Endpoint is a possible destination of a connection, such as a pod.
type Endpoint struct {
	// AddrPort is the endpoint's address and target port.
	AddrPort netip.AddrPort
	// Local says that the endpoint is on this node, Remote that it is on another node. Without either its slice names
	// no node, and the endpoint may be on this node.
	Local, Remote bool
	// Info is for backends that forward requests, like the last fields of ServicePort.
	Info EndpointInfo
}

// EndpointInfo describes an endpoint, in the memory of a pointer. Values with equal content are ==. The zero value is
// empty.
type EndpointInfo struct{ handle unique.Handle[endpointTexts] }

type endpointTexts struct{ hostname, zone string }

// NewEndpointInfo returns the EndpointInfo with a host name and a zone; either may be empty.
func NewEndpointInfo(hostname, zone string) EndpointInfo {
	if hostname == "" && zone == "" {
		return EndpointInfo{}
	}
	return EndpointInfo{unique.Make(endpointTexts{hostname, zone})}
}

func (i EndpointInfo) texts() (texts endpointTexts) {
	if i != (EndpointInfo{}) {
		texts = i.handle.Value()
	}
	return texts
}

// Hostname returns the pod's host name within its Service, as DNS has it; most pods have none (EndpointSlice
// endpoints[].hostname).
func (i EndpointInfo) Hostname() string { return i.texts().hostname }

// Zone returns the zone of the endpoint (EndpointSlice endpoints[].zone), or "".
func (i EndpointInfo) Zone() string { return i.texts().zone }

// Equal is ==, for programs that compare by reflection.
func (i EndpointInfo) Equal(other EndpointInfo) bool { return i == other }

// String returns host name and zone.
func (i EndpointInfo) String() string { return i.Hostname() + "@" + i.Zone() }

// CompareEndpoints orders endpoints by address and port.
func CompareEndpoints(a, b Endpoint) int { return a.AddrPort.Compare(b.AddrPort) }
