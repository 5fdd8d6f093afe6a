package verb

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newExplainCommand() *cobra.Command {
	var where source
	var from, to, iif string
	format := newFormat("text", "json", "yaml")
	cmd := &cobra.Command{
		Use:   "explain --from ADDRESS[%INTERFACE] --to ADDRESS:PORT[/PROTOCOL]",
		Short: "Say where a packet goes, by which rules, and why",
		Long: `explain walks the first packet of a connection through the proxy's rules and prints
every possible outcome: the reason in a sentence, then the rules and the elements that they
find, hook by hook. It sends nothing.

A packet from one of the node's own addresses counts as one of a local process; with compiled
rules these are the Node's addresses alone. It does not look at rules of other programs, nor
at unreachable routes.

With the rules of the kernel it also shows the client's session affinity, and its connections
to the address in conntrack, with their states. Changed rules do not move connections; those
whose server is no endpoint by these rules are marked.`,
		Example: `  # What does a pod reach at a ClusterIP, on this node, at this moment?
  ruledump explain --from 10.244.1.5 --to 10.96.0.10:80

  # Does a client that comes in by eth0 keep its address at a node port?
  ruledump explain --from 198.51.100.7%eth0 --to 192.168.0.1:30080/tcp

  # What would node-1 do, given these manifests?
  ruledump explain --manifests objects/ --node node-1 --from fd00::1 --to '[fd00:10:96::a]:53/udp'`,
		Args: flagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			packet, err := parsePacket(from, to, iif)
			if err != nil {
				return err
			}
			s, err := where.open(cmd)
			if err != nil {
				return err
			}
			defer s.Close()
			e, err := Explain(s.Snapshot, packet)
			if err == nil && s.conn != nil {
				err = addConnections(cmd, e)
			}
			if err != nil {
				return err
			}
			return format.write(cmd.OutOrStdout(), e, func() error {
				_, err := e.WriteTo(cmd.OutOrStdout())
				return err
			})
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "source: ADDRESS or ADDRESS:PORT, and perhaps %INTERFACE that the packet comes in by, needed only if a rule asks for it")
	cmd.Flags().StringVar(&to, "to", "", "destination: ADDRESS:PORT/tcp (or udp, sctp; tcp if left out), or ADDRESS/icmp")
	cmd.Flags().StringVar(&iif, "iif", "", "interface that the packet comes in by, as in --from")
	where.addTo(cmd)
	format.addTo(cmd)
	for _, required := range []string{"from", "to"} {
		if err := cmd.MarkFlagRequired(required); err != nil {
			panic(err)
		}
	}
	return cmd
}

// addConnections looks up what the kernel's connection tracking knows.
func addConnections(cmd *cobra.Command, e *Explanation) error {
	conn, err := conntrack.Dial(0)
	if err != nil {
		return err
	}
	return e.AddConnections(cmd.Context(), conn)
}

// flagsOnly refuses a client and an address without their flags.
func flagsOnly(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return nil
	case 2:
		return fmt.Errorf("explain takes its addresses by flags: did you mean --from %s --to %s?", args[0], args[1])
	}
	return fmt.Errorf("explain takes its addresses by flags, and %q belongs to none: give --from ADDRESS --to ADDRESS:PORT", args[0])
}

// parseSource reads the value of --from: an address, perhaps with a port, perhaps with "%" and an interface.
func parseSource(text string) (source netip.AddrPort, iface string, err error) {
	address, iface, _ := strings.Cut(text, "%")
	if strings.Contains(iface, "]") { // [fe80::1%eth0]:80
		var rest string
		iface, rest, _ = strings.Cut(iface, "]")
		address += "]" + rest
	}
	source, err = parseAddrPort(address)
	return source, iface, err
}

// parsePacket reads the values of --from, --to and --iif.
func parsePacket(from, to, iif string) (evaluator.Packet, error) {
	target, protocol, named := strings.Cut(to, "/")
	if !named {
		protocol = "tcp"
	}
	destination, err := parseAddrPort(target)
	if err != nil {
		return evaluator.Packet{}, fmt.Errorf("--to: %w", err)
	}
	source, iface, err := parseSource(from)
	if err != nil {
		return evaluator.Packet{}, fmt.Errorf("--from: %w", err)
	}
	if iif == "" {
		iif = iface
	}
	if source.Addr().Is4() != destination.Addr().Is4() {
		return evaluator.Packet{}, fmt.Errorf("--from %s and --to %s are of different IP families", from, to)
	}
	number, err := protocolNumber(protocol, destination)
	if err != nil {
		return evaluator.Packet{}, fmt.Errorf("--to: %w", err)
	}
	return evaluator.Packet{Source: source, Destination: destination, Protocol: number, Interface: iif}, nil
}

// parseAddrPort reads an address with or without a port, which is 0 then.
func parseAddrPort(text string) (netip.AddrPort, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr.Unmap(), 0), nil
	}
	if _, port, err := net.SplitHostPort(text); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return netip.AddrPort{}, fmt.Errorf("%q: port %q is not a number from 1 to 65535", text, port)
		}
	}
	parsed, err := netip.ParseAddrPort(text)
	if err != nil {
		return parsed, fmt.Errorf("%q is neither an IP address nor one with a port, such as 10.96.0.10:80 or [fd00::1]:80", text)
	}
	return netip.AddrPortFrom(parsed.Addr().Unmap(), parsed.Port()), nil
}

func protocolNumber(name string, destination netip.AddrPort) (uint8, error) {
	icmp := uint8(unix.IPPROTO_ICMP)
	if destination.Addr().Is6() {
		icmp = unix.IPPROTO_ICMPV6
	}
	numbers := map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP, "icmp": icmp}
	number, ok := numbers[strings.ToLower(name)]
	switch {
	case !ok:
		return 0, fmt.Errorf("protocol %q is not tcp, udp, sctp or icmp", name)
	case number == icmp && destination.Port() != 0:
		return 0, errors.New("icmp has no ports")
	case number != icmp && destination.Port() == 0:
		return 0, fmt.Errorf("%s needs a port, as in %s", name, netip.AddrPortFrom(destination.Addr(), 80))
	}
	return number, nil
}

// Explanation is the fate of the first packet of a connection, with the reasons.
type Explanation struct {
	nodeDocument
	// Packet is the packet in one line.
	Packet string `json:"packet"`
	// ServicePort is the Service port that the packet is for; empty if it is for none.
	ServicePort string `json:"servicePort,omitempty"`
	// Outcomes has more than one if the rules draw a random number.
	Outcomes []Outcome `json:"outcomes"`
	// Affinity holds the client's entries in maps of session affinity.
	Affinity []Client `json:"affinity,omitempty"`
	// Connections are those that the client already has with this address, at most MaxConnections, those that have
	// finished last. New rules do not affect them.
	Connections []Connection `json:"connections,omitempty"`
	// ConnectionsTotal is the number of all such connections.
	ConnectionsTotal int `json:"connectionsTotal,omitempty"`
	// ConnectionsFinished is the number of those that have finished.
	ConnectionsFinished int `json:"connectionsFinished,omitempty"`

	packet evaluator.Packet
	// endpoints are those of ServicePort.
	endpoints map[netip.AddrPort]bool
}

// Outcome is one possible fate of the packet.
type Outcome struct {
	// Result is "delivered", "refused", "dropped" or "untouched".
	Result string `json:"result"`
	// Reason is the reason of the result.
	Reason Reason `json:"reason"`
	// Source is "kept" or "masqueraded", for a packet that an endpoint gets.
	Source string `json:"source,omitempty"`
	// SourceReason is the reason of Source.
	SourceReason SourceReason `json:"sourceReason,omitempty"`
	// Why has both reasons in one sentence.
	Why string `json:"why"`
	// Destinations are the possible destinations of a packet that is delivered.
	Destinations []netip.AddrPort `json:"destinations,omitempty"`
	// Path is the way through the rules.
	Path []Step `json:"path"`

	head, text string
}

// Step is a rule that matched, or a decision of the kernel.
type Step struct {
	// Hook is nft's word for the hook, such as "prerouting".
	Hook string `json:"hook"`
	// Table is the table of the rule, such as "ip kube-proxy"; empty for a decision of the kernel.
	Table string `json:"table,omitempty"`
	// Chain is the name of the rule's chain.
	Chain string `json:"chain,omitempty"`
	// Rule is the rule as nft prints it; empty if no rule of the chain decided.
	Rule string `json:"rule,omitempty"`
	// Elements are those that the rule found in sets and maps, as nft prints them.
	Elements []string `json:"elements,omitempty"`
	// Verdict is the result, such as "goto cluster-3" or "routing: forwarded".
	Verdict string `json:"verdict"`
}

// Client is a client in a map of session affinity.
type Client struct {
	// Map is the name of the map.
	Map string `json:"map"`
	// Endpoint is the client's endpoint.
	Endpoint netip.AddrPort `json:"endpoint"`
	// ExpiresSeconds is how long the client keeps it unless it connects again.
	ExpiresSeconds int `json:"expiresSeconds"`
	// Clients is the number of clients in the map.
	Clients int `json:"clients"`
}

// Explain walks the packet through the tables of a ruledump.
func Explain(s *ruledump.Snapshot, p evaluator.Packet) (*Explanation, error) {
	frontends, err := s.Frontends()
	if err != nil {
		return nil, err
	}
	p.Local = p.Local || p.Source.Addr().IsLoopback() || slices.Contains(s.Addresses, p.Source.Addr())
	e := &Explanation{nodeDocument: aboutNode("Explanation", s), Packet: p.String(), packet: p}
	for _, f := range candidates(frontends, p) {
		if err := e.readAffinity(s, f); err != nil {
			return nil, err
		}
	}
	fates, err := evaluator.New(s.Tables, s.Host()).Fates(p)
	if err != nil {
		return nil, err
	}
	for _, o := range fates.Outcomes() {
		e.add(frontends, &o)
	}
	e.keepEndpoints(candidates(frontends, p))
	return e, nil
}

// candidates returns the frontends that a packet may be for.
func candidates(frontends []*compiler.Frontend, p evaluator.Packet) (out []*compiler.Frontend) {
	for _, nodePort := range []bool{false, true} {
		if f := dialedFrontend(frontends, p, nodePort); f != nil {
			out = append(out, f)
		}
	}
	return out
}

// dialedFrontend returns the frontend, of an address or of a node port, that has the packet's destination.
func dialedFrontend(frontends []*compiler.Frontend, p evaluator.Packet, nodePort bool) *compiler.Frontend {
	for _, f := range frontends {
		if uint8(f.Protocol) != p.Protocol || f.Port != p.Destination.Port() || (f.Family == nft.FamilyIP) != p.Destination.Addr().Is4() {
			continue
		}
		if nodePort && f.Kind == compiler.FrontendNodePort || !nodePort && f.Addr == p.Destination.Addr() {
			return f
		}
	}
	return nil
}

func (e *Explanation) add(frontends []*compiler.Frontend, o *evaluator.Outcome) {
	out := Outcome{Result: o.Fate.Result.String(), Reason: reasonOf(&o.Fate), head: head(o), text: indent(folded(o.Fate.Path).String())}
	var f *compiler.Frontend
	switch {
	case o.Fate.Untouched():
		out.Result = "untouched"
	case o.Fate.Result == evaluator.Delivered:
		out.SourceReason, out.Source = sourceReasonOf(&o.Fate), "kept"
		if o.Fate.Masqueraded {
			out.Source = "masqueraded"
		}
		f = dialedFrontend(frontends, e.packet, throughNodePort(o.Fate.Path))
	default:
		for _, f = range candidates(frontends, e.packet) {
			break
		}
	}
	if o.Fate.Result == evaluator.Delivered {
		out.Destinations = o.Destinations
	}
	if f != nil && e.ServicePort == "" && out.Reason != ReasonUnknownPort {
		e.ServicePort = f.ServicePort
	}
	for i := range o.Fate.Path {
		out.Path = append(out.Path, step(&o.Fate.Path[i]))
	}
	out.Why = e.why(&out, f, total(f, o))
	e.Outcomes = append(e.Outcomes, out)
}

// explainShown is how many destinations, and elements of one rule, are printed for people.
const explainShown = 10

// head is the outcome in one line, with the first destinations.
func head(o *evaluator.Outcome) string {
	text := o.String()
	if n := len(o.Destinations); n > explainShown {
		first, after := o.Destinations[explainShown-1].String(), ""
		if at := strings.LastIndex(text, o.Destinations[n-1].String()); at >= 0 {
			after = text[at+len(o.Destinations[n-1].String()):]
		}
		before, _, _ := strings.Cut(text, first)
		return fmt.Sprintf("%s%s or %d more%s", before, first, n-explainShown, after)
	}
	return text
}

// folded returns the path with no more elements of each rule than are printed.
func folded(path evaluator.Path) evaluator.Path {
	path = slices.Clone(path)
	for i := range path {
		if e := path[i].Elements; len(e) > explainShown {
			path[i].Elements = append(e[:explainShown-1:explainShown-1], fmt.Sprintf("… and %d more", len(e)-explainShown+1))
		}
	}
	return path
}

// throughNodePort reports whether a path led through a chain for node ports.
func throughNodePort(path evaluator.Path) bool {
	return slices.ContainsFunc(path, func(s evaluator.Step) bool { return s.Chain != nil && compiler.ServesNodePorts(s.Chain.Name) })
}

// total returns how many endpoints a packet may have drawn from.
func total(f *compiler.Frontend, o *evaluator.Outcome) int {
	if f == nil {
		return len(o.Destinations)
	}
	for _, list := range [][]netip.AddrPort{f.LocalEndpoints, f.Endpoints} {
		if len(list) > 0 && !slices.ContainsFunc(o.Destinations, func(d netip.AddrPort) bool { return !slices.Contains(list, d) }) {
			if sourceReasonOf(&o.Fate) == SourcePolicyLocal || len(f.LocalEndpoints) == 0 || &list[0] == &f.Endpoints[0] {
				return len(list)
			}
		}
	}
	return len(o.Destinations)
}

func step(s *evaluator.Step) Step {
	out := Step{Hook: string(s.Hook), Elements: s.Elements, Verdict: s.Verdict}
	if s.Chain != nil {
		out.Table, out.Chain = s.Table.Family.String()+" "+s.Table.Name, s.Chain.Name
	}
	if s.Rule != nil {
		out.Rule = s.Rule.String()
	}
	return out
}

// readAffinity reads the affinity maps of a frontend from the kernel, and finds the packet's client in them.
func (e *Explanation) readAffinity(s *ruledump.Snapshot, f *compiler.Frontend) error {
	for _, t := range s.Tables {
		if t.Family != f.Family {
			continue
		}
		for _, name := range f.AffinityMaps {
			set := t.Set(name)
			if set == nil {
				continue
			}
			if s.ReadClients != nil {
				if err := s.ReadClients(t, set); err != nil {
					return err
				}
			}
			client, found := set.Element(nft.AddrData(e.packet.Source.Addr()))
			endpoint, ok := compiler.ParseEndpoint(client.Value)
			if found && ok {
				e.Affinity = append(e.Affinity, Client{Map: name, Endpoint: endpoint, ExpiresSeconds: int(client.Expires.Seconds()), Clients: set.Len()})
			}
		}
	}
	return nil
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
}

// WriteTo prints the explanation for people.
func (e *Explanation) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", e.Packet)
	if len(e.Outcomes) > 1 {
		fmt.Fprintf(&b, "%d possible fates\n\n", len(e.Outcomes))
	}
	for i := range e.Outcomes {
		o := &e.Outcomes[i]
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s\n  why: %s\n%s", o.head, o.Why, o.text)
	}
	for _, c := range e.Affinity {
		fmt.Fprintf(&b, "\nsession affinity: %s keeps the client at %s for %d s more (clients in the map: %d)\n", c.Map, c.Endpoint, c.ExpiresSeconds, c.Clients)
	}
	e.printConnections(&b)
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}
