// Package services shows rulesets as Services: each address that clients dial, with its endpoints. It
// reads them from the tables. Only the node and zone of endpoints come from objects, if there are any.
package services

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/ruledump/dump"
	"github.com/nftproxy/nftproxy/internal/ruledump/snapshot"
)

// List holds the frontends of one node.
type List struct {
	// APIVersion is dump.APIVersion.
	APIVersion string `json:"apiVersion"`
	// Kind names the type of the document.
	Kind string `json:"kind"`
	// Node is the name of the node.
	Node string `json:"node,omitempty"`
	// NodeSource says where the name of a kernel's node comes from: "proxy" or "host-name".
	NodeSource string `json:"nodeSource,omitempty"`
	// Frontends are sorted by Service port.
	Frontends []Frontend `json:"frontends"`
}

// Frontend is one address that clients dial.
type Frontend struct {
	// Namespace and Service are the namespace and the name of the Service.
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// Port is the name of the Service port; empty if it has none.
	Port string `json:"port,omitempty"`
	// Protocol is "TCP", "UDP" or "SCTP".
	Protocol string `json:"protocol"`
	// Kind is "ClusterIP", "External" (an external or load balancer IP) or "NodePort".
	Kind string `json:"kind"`
	// Family is "ip" or "ip6".
	Family string `json:"family"`
	// Address is the address that clients dial, such as "10.96.0.10:80"; for a node port, ":30080".
	Address string `json:"address"`
	// Policy is "Cluster" or "Local"; empty if the table does not tell (compiler.Frontend.Policy).
	Policy string `json:"policy,omitempty"`
	// Endpoints are those for all clients; under policy Local, those for clients of the cluster and of the node.
	Endpoints []Endpoint `json:"endpoints"`
	// LocalEndpoints are those for all other clients under policy Local.
	LocalEndpoints []Endpoint `json:"localEndpoints,omitempty"`
	// Unserved is "reject" or "drop" if some clients are sent to no endpoint.
	Unserved string `json:"unserved,omitempty"`
	// AffinitySeconds is how long a client stays with its endpoint; 0 for no affinity.
	AffinitySeconds int `json:"affinitySeconds,omitempty"`
	// Sources are the prefixes that may dial the address; absent for everybody.
	Sources []netip.Prefix `json:"sources,omitzero"`
	// Chain is the name of the chain to which new connections go.
	Chain string `json:"chain,omitempty"`
	// Count is that of the address; nil if the proxy does not count.
	*Count
}

// Count counts the traffic through an address since its element was added to the kernel's set.
type Count struct {
	// Connections is the number of connections that were sent to an endpoint.
	Connections uint64 `json:"connections"`
	// Packets and Bytes are of these connections in both directions, IP headers included.
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Endpoint is an endpoint with its place.
type Endpoint struct {
	// Address is the endpoint's address and port.
	Address netip.AddrPort `json:"address"`
	snapshot.Place
}

// Filter selects Services. The zero value selects all.
type Filter struct {
	// Namespace is the namespace; empty for all.
	Namespace string
	// Name is the name of a Service; empty for all.
	Name string
}

// ParseFilter reads a namespace and a name, which may have the form "namespace/name".
func ParseFilter(namespace, name string) (Filter, error) {
	before, after, qualified := strings.Cut(name, "/")
	switch {
	case !qualified:
		return Filter{namespace, name}, nil
	case namespace != "" && namespace != before:
		return Filter{}, fmt.Errorf("%s is not in namespace %s", name, namespace)
	}
	return Filter{before, after}, nil
}

// String names the wanted Services in messages.
func (f Filter) String() string {
	switch {
	case f.Name == "" && f.Namespace == "":
		return "Service"
	case f.Name == "":
		return "Service in namespace " + f.Namespace
	case f.Namespace == "":
		return "Service " + f.Name
	}
	return "Service " + f.Namespace + "/" + f.Name
}

// Matches reports whether the filter selects the Service of a Service port, which is given as in the comments of
// elements.
func (f Filter) Matches(servicePort string) bool {
	namespace, service, _ := Split(servicePort)
	return (f.Namespace == "" || f.Namespace == namespace) && (f.Name == "" || f.Name == service)
}

// Split takes "namespace/service:port" apart.
func Split(servicePort string) (namespace, service, port string) {
	namespace, service, _ = strings.Cut(servicePort, "/")
	service, port, _ = strings.Cut(service, ":")
	return namespace, service, port
}

// Of returns the frontends of the Services that the filter selects.
func Of(s *snapshot.Snapshot, filter Filter) (*List, error) {
	frontends, err := s.Frontends()
	if err != nil {
		return nil, err
	}
	list := &List{APIVersion: dump.APIVersion, Kind: "Services", Node: s.Node, NodeSource: s.NodeSource, Frontends: []Frontend{}}
	for _, f := range frontends {
		if filter.Matches(f.ServicePort) {
			shown := from(f, s.Places)
			shown.Count = count(s, f)
			list.Frontends = append(list.Frontends, shown)
		}
	}
	return list, nil
}

// count returns what went through a frontend; nil if that was not counted.
func count(s *snapshot.Snapshot, f *compiler.Frontend) *Count {
	connections, traffic := f.CountSets()
	opened, counted := s.Counts[dump.CountedSet{Family: f.Family, Set: connections}][f.Key()]
	n := s.Counts[dump.CountedSet{Family: f.Family, Set: traffic}][f.Key()]
	if !counted {
		return nil
	}
	return &Count{opened.Packets, n.Packets, n.Bytes}
}

func from(f *compiler.Frontend, places map[netip.Addr]snapshot.Place) Frontend {
	out := Frontend{
		Protocol: f.Protocol.String(), Kind: string(f.Kind), Family: f.Family.String(), Address: Address(f),
		Policy: f.Policy, Endpoints: endpoints(f.Endpoints, places), Unserved: string(f.Unserved),
		AffinitySeconds: int(f.AffinityTimeout.Seconds()), Sources: f.Sources, Chain: f.Chain,
	}
	if len(f.LocalEndpoints) > 0 {
		out.LocalEndpoints = endpoints(f.LocalEndpoints, places)
	}
	out.Namespace, out.Service, out.Port = Split(f.ServicePort)
	return out
}

// Address returns the address that clients dial: "10.96.0.10:80", or ":30080" for a node port.
func Address(f *compiler.Frontend) string {
	if !f.Addr.IsValid() {
		return fmt.Sprintf(":%d", f.Port)
	}
	return netip.AddrPortFrom(f.Addr, f.Port).String()
}

func endpoints(list []netip.AddrPort, places map[netip.Addr]snapshot.Place) []Endpoint {
	out := make([]Endpoint, 0, len(list))
	for _, e := range list {
		out = append(out, Endpoint{e, places[e.Addr()]})
	}
	return out
}
