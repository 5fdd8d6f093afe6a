package verb

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/spf13/cobra"
)

func newServicesCommand() *cobra.Command {
	var from sourceOfServices
	format := newFormat("table", "wide", "json", "yaml")
	cmd := &cobra.Command{
		Use:   "services [NAME]",
		Short: "List the addresses of each Service, and where clients go",
		Long: `services prints a line for each address of each Service: its endpoints, traffic policy, session
affinity and allowed sources. It reads them from the rules, whose comments name the Service.
If a Service has no endpoint for some clients, the line says whether the rules refuse or drop
them.

The policy is "-" for a ClusterIP with endpoints: its rules are the same under both. Node
and zone of endpoints are shown (-o wide) where the objects are known: --manifests and
--kubeconfig. "External" are external IPs and load balancer IPs.

Where the proxy counts (its feature gate NFTProxyServiceCounters), two more columns have the
connections that were sent to an endpoint, and their bytes in both directions. Both begin at 0
when an address comes into the kernel or the tables are made anew.`,
		Example: `  # Everything on this node.
  ruledump services

  # One Service, with its endpoints.
  ruledump services -n shop web -o wide

  # Which Services have most connections? (The proxy has to count.)
  ruledump services -o json | jq -r '.frontends[] | "\(.connections) \(.namespace)/\(.service) \(.address)"' | sort -rn | head

  # Services that serve nobody, on another node.
  ruledump services --dump node-1.json -o json | jq -r '.frontends[] | select(.unserved) | .namespace + "/" + .service' | sort -u`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, filter, err := from.open(cmd, args)
			if err != nil {
				return err
			}
			defer s.Close()
			list, err := ListServices(s.Snapshot, filter)
			if err != nil {
				return err
			}
			if len(list.Frontends) == 0 && filter != (Filter{}) {
				return fmt.Errorf("the rules have no %s: see whether it exists, is not headless or ExternalName, and has a ClusterIP", filter)
			}
			return format.write(cmd.OutOrStdout(), list, func() error {
				return list.Table(cmd.OutOrStdout(), format.value == "wide", coloursFor(cmd.OutOrStdout()))
			})
		},
	}
	from.addTo(cmd, "only Services in this namespace")
	format.addTo(cmd)
	return cmd
}

// sourceOfServices is a source, and the flag that names Services together with the argument.
type sourceOfServices struct {
	source
	namespace string
}

func (f *sourceOfServices) addTo(cmd *cobra.Command, namespace string) {
	f.source.addTo(cmd)
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", namespace)
	cmd.ValidArgsFunction = f.complete
}

// open gets the rules, and the filter for the Services that are named.
func (f *sourceOfServices) open(cmd *cobra.Command, args []string) (*opened, Filter, error) {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	filter, err := parseFilter(f.namespace, name)
	if err != nil {
		return nil, filter, err
	}
	s, err := f.source.open(cmd)
	return s, filter, err
}

// complete completes the name of a Service from the rules.
func (f *sourceOfServices) complete(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	s, err := f.source.open(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer s.Close()
	list, err := ListServices(s.Snapshot, Filter{Namespace: f.namespace})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	seen := map[string]bool{}
	var names []string
	for i := range list.Frontends {
		name := list.Frontends[i].Namespace + "/" + list.Frontends[i].Service
		if f.namespace != "" {
			name = list.Frontends[i].Service
		}
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// Services holds the frontends of one node.
type Services struct {
	nodeDocument
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
	ruledump.Place
}

// Filter selects Services. The zero value selects all.
type Filter struct {
	// Namespace is the namespace; empty for all.
	Namespace string
	// Name is the name of a Service; empty for all.
	Name string
}

// parseFilter reads a namespace and a name, which may have the form "namespace/name".
func parseFilter(namespace, name string) (Filter, error) {
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
	namespace, service, _ := splitServicePort(servicePort)
	return (f.Namespace == "" || f.Namespace == namespace) && (f.Name == "" || f.Name == service)
}

// splitServicePort takes "namespace/service:port" apart.
func splitServicePort(servicePort string) (namespace, service, port string) {
	namespace, service, _ = strings.Cut(servicePort, "/")
	service, port, _ = strings.Cut(service, ":")
	return namespace, service, port
}

// Of returns the frontends of the Services that the filter selects.
func ListServices(s *ruledump.Snapshot, filter Filter) (*Services, error) {
	frontends, err := s.Frontends()
	if err != nil {
		return nil, err
	}
	list := &Services{nodeDocument: aboutNode("Services", s), Frontends: []Frontend{}}
	for _, f := range frontends {
		if filter.Matches(f.ServicePort) {
			shown := frontendOf(f, s.Places)
			shown.Count = countOf(s, f)
			list.Frontends = append(list.Frontends, shown)
		}
	}
	return list, nil
}

// countOf returns what went through a frontend; nil if that was not counted.
func countOf(s *ruledump.Snapshot, f *compiler.Frontend) *Count {
	connections, traffic := f.CountSets()
	opened, counted := s.Counts[ruledump.CountedSet{Family: f.Family, Set: connections}][f.Key()]
	n := s.Counts[ruledump.CountedSet{Family: f.Family, Set: traffic}][f.Key()]
	if !counted {
		return nil
	}
	return &Count{opened.Packets, n.Packets, n.Bytes}
}

func frontendOf(f *compiler.Frontend, places map[netip.Addr]ruledump.Place) Frontend {
	out := Frontend{
		Protocol: f.Protocol.String(), Kind: string(f.Kind), Family: f.Family.String(), Address: addressOf(f),
		Policy: f.Policy, Endpoints: endpointsOf(f.Endpoints, places), Unserved: string(f.Unserved),
		AffinitySeconds: int(f.AffinityTimeout.Seconds()), Sources: f.Sources, Chain: f.Chain,
	}
	if len(f.LocalEndpoints) > 0 {
		out.LocalEndpoints = endpointsOf(f.LocalEndpoints, places)
	}
	out.Namespace, out.Service, out.Port = splitServicePort(f.ServicePort)
	return out
}

// addressOf returns the address that clients dial: "10.96.0.10:80", or ":30080" for a node port.
func addressOf(f *compiler.Frontend) string {
	if !f.Addr.IsValid() {
		return fmt.Sprintf(":%d", f.Port)
	}
	return netip.AddrPortFrom(f.Addr, f.Port).String()
}

func endpointsOf(list []netip.AddrPort, places map[netip.Addr]ruledump.Place) []Endpoint {
	out := make([]Endpoint, 0, len(list))
	for _, e := range list {
		out = append(out, Endpoint{e, places[e.Addr()]})
	}
	return out
}
