package verb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
)

func newServicesCommand() *cobra.Command {
	var from source
	cmd := &cobra.Command{
		Use:   "services [NAME]",
		Short: "List the addresses of each Service, and where clients go",
		Long: `services prints a line for each address of each Service: its endpoints, traffic policy, session
affinity and allowed sources. It reads them from the rules, whose comments name the Service.
If a Service has no endpoint for some clients, the line says whether the rules refuse or drop
them.

The policy is "-" for a ClusterIP with endpoints: its rules are the same under both. Pod, node
and zone of endpoints are shown (-o wide) where the objects are known: --manifests,
--kubeconfig and --names; and endpoints that are not ready. "External" are external IPs and
load balancer IPs.

With the kernel's rules, -o wide and -o json have the connections of each endpoint that
conntrack knows: active ones, which were answered and have not ended, and unanswered ones.
Connections of clients that dial the endpoint itself are not among them.

Where the proxy counts (its feature gate NFTProxyServiceCounters), two more columns have the
connections that were sent to an endpoint, and their bytes in both directions. Both begin at 0
when an address comes into the kernel or the tables are made anew.`,
		Example: `  # Everything on this node.
  ruledump services

  # One Service, with its endpoints.
  ruledump services shop/web -o wide

  # Which Service has this address? Which ones have this endpoint?
  ruledump services 10.96.0.10
  ruledump services 10.244.1.5:8080

  # Which Services serve nobody, or not everybody?
  ruledump services --unserved -o name

  # Which Services have most connections? (The proxy has to count.)
  ruledump services -o json | jq -r '.frontends[] | "\(.connections) \(.namespace)/\(.service) \(.address)"' | sort -rn | head`,
		Args: cobra.MaximumNArgs(1),
	}
	from.addNamesTo(cmd)
	cmd.Flags().BoolVar(&from.unserved, "unserved", false, "only addresses that send some clients to no endpoint")
	format := newFormat("table", "wide", "name", "json")
	return from.shows(cmd, format, func(cmd *cobra.Command, s *ruledump.Snapshot, filter Filter) (View, error) {
		var flows flowCounts
		if from.conn != nil && (format.value == "wide" || format.isDocument()) {
			var err error
			if flows, err = countFlows(cmd.Context(), &from, s, filter); err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "ruledump: connections: %v\n", err)
			}
		}
		return ListServices(s, filter, flows)
	})
}

// Services holds the frontends of one node, sorted by Service port.
type Services struct {
	nodeDocument
	Frontends []frontend `json:"frontends"`
}

// frontend is one address that clients dial.
type frontend struct {
	Namespace string `json:"namespace"`      // namespace of the Service
	Service   string `json:"service"`        // name of the Service
	Port      string `json:"port,omitempty"` // name of the Service port
	Protocol  string `json:"protocol" jsonschema:"enum=TCP,enum=UDP,enum=SCTP"`
	// Kind: External stands for external and load balancer IPs
	Kind    string `json:"kind" jsonschema:"enum=ClusterIP,enum=External,enum=NodePort"`
	Family  string `json:"family" jsonschema:"enum=ip,enum=ip6"`
	Address string `json:"address"` // as --to takes it: 10.96.0.10:80/TCP, or :30080/TCP for a node port
	// Policy: absent where the rules are the same under both
	Policy string `json:"policy,omitempty" jsonschema:"enum=Cluster,enum=Local"`
	// Endpoints are for all clients; under policy Local, for clients of the cluster and of the node.
	Endpoints []endpoint `json:"endpoints"`
	// LocalEndpoints are for all other clients under policy Local.
	LocalEndpoints []endpoint `json:"localEndpoints,omitempty"`
	// NotReady are endpoints that the rules leave out, if the objects are known: their condition ready is false.
	NotReady []endpoint `json:"notReady,omitempty"`
	// Unserved: what becomes of clients for whom there is no endpoint
	Unserved string `json:"unserved,omitempty" jsonschema:"enum=reject,enum=drop"`
	// AffinitySeconds: how long a client stays with its endpoint; absent without affinity
	AffinitySeconds int            `json:"affinitySeconds,omitempty"`
	Sources         []netip.Prefix `json:"sources,omitzero"` // who may dial the address; absent for everybody
	Chain           string         `json:"chain,omitempty"`  // the chain to which new connections go
	*count
}

// count counts the traffic through an address since its element was added to the kernel's set.
type count struct {
	// Connections: connections translated since the address came into the kernel; absent where the proxy does not
	// count
	Connections uint64 `json:"connections"`
	Packets     uint64 `json:"packets"` // packets of these connections, in both directions
	Bytes       uint64 `json:"bytes"`   // bytes of these connections, IP headers included
}

type endpoint struct {
	Address netip.AddrPort `json:"address"`
	ruledump.Place
	// Flows are the flows from this address to the endpoint that conntrack has, in the kernel alone.
	Flows *flowCount `json:"flows,omitempty"`
}

// ListServices returns the frontends of the Services that the filter selects. It is an error if there are none.
// flows are counted by endpoint; nil for none.
func ListServices(s *ruledump.Snapshot, filter Filter, flows flowCounts) (*Services, error) {
	frontends, err := frontendsOf(s, filter)
	if err == nil && len(frontends) == 0 && !filter.isAll() {
		err = filter.notFound()
	}
	list := &Services{nodeDocument: aboutNode("Services", s), Frontends: []frontend{}}
	for _, f := range frontends {
		if filter.unserved && f.Unserved == "" {
			continue
		}
		shown := frontend{
			Protocol: f.Protocol.String(), Kind: string(f.Kind), Family: f.Family.String(), Address: addressOf(f) + "/" + f.Protocol.String(),
			Policy: f.Policy, Endpoints: endpointsOf(f, f.Endpoints, s.Places, flows), LocalEndpoints: endpointsOf(f, f.LocalEndpoints, s.Places, flows),
			NotReady: endpointsOf(f, unreadyOf(s, f), s.Places, flows), Unserved: string(f.Unserved), AffinitySeconds: int(f.AffinityTimeout.Seconds()), Sources: f.Sources, Chain: f.Chain,
			count: countOf(s, f),
		}
		shown.Namespace, shown.Service, shown.Port = splitServicePort(f.ServicePort)
		list.Frontends = append(list.Frontends, shown)
	}
	return list, err
}

// countOf returns what went through a frontend; nil if that was not counted.
func countOf(s *ruledump.Snapshot, f *compiler.Frontend) *count {
	connections, traffic := f.CountSets()
	opened, counted := s.Counts[ruledump.CountedSet{Family: f.Family, Set: connections}][f.Key()]
	n := s.Counts[ruledump.CountedSet{Family: f.Family, Set: traffic}][f.Key()]
	if !counted {
		return nil
	}
	return &count{opened.Packets, n.Packets, n.Bytes}
}

// addressOf returns the address that clients dial: "10.96.0.10:80", or ":30080" for a node port.
func addressOf(f *compiler.Frontend) string {
	if !f.Addr.IsValid() {
		return fmt.Sprintf(":%d", f.Port)
	}
	return netip.AddrPortFrom(f.Addr, f.Port).String()
}

func endpointsOf(f *compiler.Frontend, list []netip.AddrPort, places map[netip.Addr]ruledump.Place, flows flowCounts) []endpoint {
	out := make([]endpoint, 0, len(list))
	for _, e := range list {
		shown := endpoint{Address: e, Place: places[e.Addr()]}
		if flows != nil {
			n := flows.of(f, e)
			shown.Flows = &n
		}
		out = append(out, shown)
	}
	return out
}

// unreadyOf returns the endpoints of a frontend's Service port that are not ready and that the rules leave out.
func unreadyOf(s *ruledump.Snapshot, f *compiler.Frontend) (list []netip.AddrPort) {
	for _, e := range s.Unready[f.ServicePort] {
		if e.Addr().Is4() == (f.Family == nft.FamilyIP) && !slices.Contains(f.Endpoints, e) && !slices.Contains(f.LocalEndpoints, e) {
			list = append(list, e)
		}
	}
	return list
}

// Text prints a line for each frontend. The format "wide" adds the endpoints themselves and the source ranges. Where
// the proxy counts, there are connections and bytes too.
func (l *Services) Text(p *Page) {
	if p.Format == "name" {
		var names []string
		for i := range l.Frontends {
			names = append(names, l.Frontends[i].Namespace+"/"+l.Frontends[i].Service)
		}
		p.names(names)
		return
	}
	wide := p.Format == "wide"
	counted := slices.ContainsFunc(l.Frontends, func(f frontend) bool { return f.count != nil })
	head := []string{"SERVICE PORT", "FRONTEND", "KIND", "POLICY", "ENDPOINTS", "AFFINITY", "SOURCES", "CHAIN"}
	if counted {
		head = append(head, "CONNECTIONS", "BYTES")
	}
	if wide {
		head = append(head, "TO")
	}
	table(p, head, l.Frontends, func(f frontend) []any {
		name := f.Namespace + "/" + f.Service
		if f.Port != "" {
			name += ":" + f.Port
		}
		row := []any{
			name, f.Address, f.Kind, orDash(f.Policy), f.served(),
			orDash(shortDuration(time.Duration(f.AffinitySeconds) * time.Second)), f.sources(wide), orDash(f.Chain),
		}
		switch {
		case f.count != nil:
			row = append(row, f.Connections, byteText(f.Bytes))
		case counted:
			row = append(row, "-", "-")
		}
		if wide {
			row = append(row, f.to())
		}
		return row
	}, func(f frontend) bool { return f.Unserved != "" })
}

// byteText prints a number of bytes with three digits or so: "512 B", "1.5 KiB", "320 GiB".
func byteText(n uint64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	const units = "KMGTPE"
	v, unit := float64(n)/(1<<10), 0
	for ; v >= 1000 && unit < len(units)-1; unit++ {
		v /= 1 << 10
	}
	digits := 0
	if v < 10 {
		digits = 1
	}
	return fmt.Sprintf("%.*f %ciB", digits, v, units[unit])
}

// served says how many endpoints there are, and the fate of clients that are sent to none.
func (f *frontend) served() string {
	text := fmt.Sprint(len(f.Endpoints))
	if f.Policy == "Local" && f.Kind != string(compiler.FrontendClusterIP) {
		text = fmt.Sprintf("%d local of %d", len(f.LocalEndpoints), len(f.Endpoints))
	}
	switch compiler.Unserved(f.Unserved) {
	case compiler.UnservedReject:
		text += ", refused"
	case compiler.UnservedDrop:
		text += ", dropped"
	}
	return text
}

// shortDuration prints a duration of whole seconds without the parts that are zero: "3h", "1h30m"; 0 is empty.
func shortDuration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	text := d.String()
	if minutes, whole := strings.CutSuffix(text, "m0s"); whole {
		text = minutes + "m"
	}
	if hours, whole := strings.CutSuffix(text, "h0m"); whole {
		text = hours + "h"
	}
	return text
}

func (f *frontend) sources(wide bool) string {
	switch {
	case f.Sources == nil:
		return "all"
	case len(f.Sources) == 1 || wide && len(f.Sources) > 0:
		return join(f.Sources, ",")
	}
	return fmt.Sprintf("%d ranges", len(f.Sources))
}

// to lists the endpoints.
func (f *frontend) to() string {
	text := orDash(join(f.Endpoints, ","))
	if len(f.LocalEndpoints) > 0 {
		text += "; local: " + join(f.LocalEndpoints, ",")
	}
	if len(f.NotReady) > 0 {
		text += "; not ready: " + join(f.NotReady, ",")
	}
	return text
}

// String returns the endpoint's address, with its pod, its place and its flows as far as they are known.
func (e endpoint) String() string {
	text := placed(e.Address.String(), e.Place)
	if n := e.Flows; n != nil {
		text += fmt.Sprintf(" (%d active, %d unanswered)", n.Active, n.Unanswered)
	}
	return text
}

// join lists values as they print.
func join[T fmt.Stringer](list []T, separator string) string {
	var texts []string
	for _, v := range list {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, separator)
}
