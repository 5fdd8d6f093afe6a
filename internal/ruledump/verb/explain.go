package verb

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newExplainCommand() *cobra.Command {
	var where source
	var from, to, iif string
	cmd := &cobra.Command{
		Use:   "explain --from ADDRESS[%INTERFACE] --to {SERVICE | ADDRESS:PORT[/PROTOCOL]}",
		Short: "Say where a packet goes, by which rules, and why",
		Long: `explain walks the first packet of a connection through the proxy's rules and prints
every possible outcome: the reason in a sentence, then the rules and the elements that they
find, hook by hook. It sends nothing.

A packet from one of the node's own addresses counts as one of a local process; with compiled
rules these are the Node's addresses alone.

With the rules of the kernel, or of a dump of one, it follows the packet through the chains of
all programs (families ip, ip6, inet, netdev and bridge, and iptables-legacy), in the order of
their priorities.
If one drops the packet, it is named. If that depends on something unknown, such as a rate limit
or the order of chains with one priority, each outcome names what it depends on. A packet counts
as coming in by the interface that leads to its source. Routing rules, routes and the policies
of IPsec count too. What it cannot follow, such as programs of tc, XDP and cgroups, and IPVS, is
listed under "not looked at".

With -o svg it draws the packet's way through the hooks and chains; what decided is red, other
programs' chains are blue.

With the rules of the kernel it also shows the client's session affinity, and its connections
to the address in conntrack, with their states. Changed rules do not move connections; those
whose server is no endpoint by these rules are marked.`,
		Example: `  # What does a pod reach at a Service, on this node, at this moment?
  ruledump explain --from 10.244.1.5 --to shop/web:http

  # The same, by the address.
  ruledump explain --from 10.244.1.5 --to 10.96.0.10:80

  # Does a client that comes in by eth0 keep its address at a node port?
  ruledump explain --from 198.51.100.7%eth0 --to 192.168.0.1:30080/tcp

  # What would node-1 do, given these manifests?
  ruledump explain --manifests objects/ --node node-1 --from fd00::1 --to '[fd00:10:96::a]:53/udp'`,
		Args: flagsOnly,
	}
	cmd.Flags().StringVar(&from, "from", "", "source: ADDRESS or ADDRESS:PORT, and perhaps %INTERFACE that the packet comes in by, needed only if a rule asks for it")
	cmd.Flags().StringVar(&to, "to", "", "destination: a Service, NAMESPACE/NAME[:PORT], at its ClusterIP, or ADDRESS:PORT/tcp (or udp, sctp; tcp if left out), or ADDRESS/icmp, or a node port, :PORT")
	cmd.Flags().StringVar(&iif, "iif", "", "interface that the packet comes in by, as in --from")
	_ = cmd.MarkFlagRequired("from")
	_ = cmd.MarkFlagRequired("to")
	where.addTo(cmd)
	where.shows(cmd, newFormat("text", "svg", "json"), func(cmd *cobra.Command, s *ruledump.Snapshot, _ Filter) (View, error) {
		packet, err := parsePacket(s, from, to, iif)
		if err != nil {
			return nil, err
		}
		if where.conn != nil {
			s.AddOthers(cmd.Context(), where.conn, false)
		}
		e, err := Explain(s, packet)
		if err == nil {
			err = e.addConnections(cmd.Context(), &where, s)
		}
		return e, err
	})
	return cmd
}

// flagsOnly refuses arguments: a client and an address need the flags --from and --to.
func flagsOnly(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return nil
	case 2:
		return fmt.Errorf("explain takes its addresses by flags: did you mean --from %s --to %s?", args[0], args[1])
	}
	return fmt.Errorf("explain takes its addresses by flags, and %q belongs to none: give --from ADDRESS --to ADDRESS:PORT", args[0])
}

// parsePacket reads the values of --from, --to and --iif. It takes the address of a Service from the rules.
func parsePacket(s *ruledump.Snapshot, from, to, iif string) (p evaluator.Packet, err error) {
	source, zone, _ := strings.Cut(unplaced(from), "%")
	iface, port, bracket := strings.Cut(zone, "]")
	if bracket { // [fe80::1%eth0]:80
		source += "]" + port
	}
	client, err := parseAddrPort(source)
	if err != nil {
		return p, fmt.Errorf("--from: %w", err)
	}
	if p, err = targetOf(s, to, client.Addr().Is4()); err != nil {
		return p, fmt.Errorf("--to: %w", err)
	}
	p.Source, p.Interface = client, cmp.Or(iif, iface)
	if p.Source.Addr().Is4() != p.Destination.Addr().Is4() {
		return p, fmt.Errorf("--from %s and --to %s are of different IP families", from, to)
	}
	return p, nil
}

// parseTarget reads ADDRESS:PORT/PROTOCOL, or an endpoint with its place.
func parseTarget(text string) (to evaluator.Packet, err error) {
	address, protocol, _ := strings.Cut(unplaced(text), "/")
	if to.Destination, err = parseAddrPort(address); err == nil {
		to.Protocol, err = protocolNumber(cmp.Or(protocol, "tcp"), to.Destination)
	}
	return to, err
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
	Packet string `json:"packet"` // the packet in one line
	// ServicePort: the Service port that the packet is for; absent if there is none
	ServicePort string `json:"servicePort,omitempty"`
	// Outcomes has more than one if the rules draw a random number.
	Outcomes []Outcome `json:"outcomes"`
	Affinity []client  `json:"affinity,omitempty"` // the client's entries in maps of session affinity
	// Connections are at most 10 that the client already has with this address, the finished ones last. Changed
	// rules do not move them.
	Connections      []connection `json:"connections,omitempty"`
	ConnectionsTotal int          `json:"connectionsTotal,omitempty"` // number of all such connections
	// ConnectionsFinished: number of these connections that have ended
	ConnectionsFinished int `json:"connectionsFinished,omitempty"`
	// Places: places of the client and of the destinations whose pods are known, by address
	Places map[netip.Addr]ruledump.Place `json:"places,omitempty"`
	// NotLookedAt names rules that may be on the packet's way and cannot be followed.
	NotLookedAt []string `json:"notLookedAt,omitempty"`

	packet evaluator.Packet
	rules  *ruledump.Snapshot
	// byAddress and byNodePort are the frontends that the packet may be for; nil for none.
	byAddress, byNodePort *compiler.Frontend
	// holder is the Service whose ClusterIP the packet is for, and ports are the ports that it has.
	holder string
	ports  []string
}

// Outcome is one possible fate of the packet.
type Outcome struct {
	// Result: undecided: a rule of another program decides, in a way that is not modelled
	Result string `json:"result" jsonschema:"enum=delivered,enum=refused,enum=dropped,enum=untouched,enum=undecided"`
	Reason Reason `json:"reason"`
	// Source: absent if no endpoint gets the packet
	Source       string       `json:"source,omitempty" jsonschema:"enum=kept,enum=masqueraded"`
	SourceReason SourceReason `json:"sourceReason,omitempty"` // why the source is kept or masqueraded
	Why          string       `json:"why"`                    // both reasons in one sentence
	// Destinations: the possible destinations of a packet that is delivered
	Destinations []netip.AddrPort `json:"destinations,omitempty"`
	// Routes: the routes by which the packet leaves the node, by destination; absent if they are not known, or not needed
	Routes []leaving `json:"routes,omitempty"`
	// Remarks: what is unusual about the destinations, and need not be wrong
	Remarks []remark `json:"remarks,omitempty"`
	// DecidedBy is the rule of another program, or the chain with its policy, that ended the packet's way.
	DecidedBy *step `json:"decidedBy,omitempty"`
	// DependsOn has rules of other programs that may or may not match; the verdict says which of both this outcome
	// is for. A chain without a rule may run before other tables' chains of its priority, or not at all. Without a chain,
	// a bridge or the node forwards the packet.
	DependsOn []step `json:"dependsOn,omitempty"`
	Path      []step `json:"path" jsonschema:"nullable"` // the rules that matched, and decisions of the kernel

	head  string
	steps evaluator.Path
}

// step is a rule that matched, or a decision of the kernel.
type step struct {
	Hook string `json:"hook"`
	// Table: table of the rule, such as "ip kube-proxy"; absent for a decision of the kernel
	Table string `json:"table,omitempty"`
	Chain string `json:"chain,omitempty"`
	// Rule: the rule as nft prints it; absent if no rule of the chain decided
	Rule     string   `json:"rule,omitempty"`
	Elements []string `json:"elements,omitempty"` // elements that the rule found in sets and maps, or ways by which packets leave
	Verdict  string   `json:"verdict"`            // the result, such as "goto cluster-3" or "routing: forwarded"
	// Kind says what happened, for programs.
	Kind evaluator.StepKind `json:"-"`
}

// client is a client in a map of session affinity.
type client struct {
	Map      string         `json:"map"` // name of the map
	Endpoint netip.AddrPort `json:"endpoint"`
	// ExpiresSeconds: how long the client keeps its endpoint unless it connects again
	ExpiresSeconds int `json:"expiresSeconds"`
	Clients        int `json:"clients"` // number of clients in the map
}

// Explain walks the packet through the tables of a snapshot. The evaluator says what happens, rule by rule. Why it happens
// is not in the rules: Explain concludes it from the roles of the chains that decided, and from the frontend that the
// packet's destination is. The tables of Kubernetes' kube-proxy have no such roles (kubeProxyReasons).
func Explain(s *ruledump.Snapshot, p evaluator.Packet) (*Explanation, error) {
	frontends, err := s.Frontends()
	if err != nil {
		return nil, err
	}
	p.Local = p.Local || p.Source.Addr().IsLoopback() || slices.Contains(s.Addresses, p.Source.Addr())
	e := &Explanation{nodeDocument: aboutNode("Explanation", s), Packet: p.String(), NotLookedAt: s.NotLookedAt, packet: p, rules: s}
	e.findFrontends(frontends)
	for _, f := range e.frontends() {
		if err := e.readAffinity(s, f); err != nil {
			return nil, err
		}
	}
	fates, err := evaluator.New(s.Walked()).Fates(p)
	if errors.Is(err, evaluator.UnknownSourcePort) {
		return nil, fmt.Errorf("%w: give one, as in --from %s", err, netip.AddrPortFrom(p.Source.Addr(), 40000))
	}
	if err != nil {
		return nil, err
	}
	for _, o := range fates.Outcomes() {
		e.add(&o)
	}
	e.findPlaces()
	return e, nil
}

// findFrontends finds the frontends that the packet's destination may be. An address of the node may be an external IP
// and have a node port of the same number, so only the fate tells which frontend served the packet (add).
func (e *Explanation) findFrontends(frontends []*compiler.Frontend) {
	to := e.packet.Destination
	for _, f := range frontends {
		if f.Addr == to.Addr() && f.Kind == compiler.FrontendClusterIP {
			e.holder, _, _ = strings.Cut(f.ServicePort, ":")
			e.ports = append(e.ports, fmt.Sprintf("%d/%s", f.Port, f.Protocol))
		}
		switch {
		case uint8(f.Protocol) != e.packet.Protocol || f.Port != to.Port() || (f.Family == nft.FamilyIP) != to.Addr().Is4():
		case f.Kind == compiler.FrontendNodePort:
			e.byNodePort = f
		case f.Addr == to.Addr():
			e.byAddress = f
		}
	}
}

func (e *Explanation) frontends() []*compiler.Frontend {
	return slices.DeleteFunc([]*compiler.Frontend{e.byAddress, e.byNodePort}, func(f *compiler.Frontend) bool { return f == nil })
}

// add adds an outcome, with its reasons.
func (e *Explanation) add(o *evaluator.Outcome) {
	out := Outcome{Result: o.Fate.Result.String(), Reason: reasonOf(&o.Fate), head: o.Head(explainShown), steps: folded(shownSteps(o.Fate.Path))}
	f := cmp.Or(e.byAddress, e.byNodePort)
	switch {
	case o.Fate.Untouched():
		out.Result, out.Destinations, f = "untouched", o.Destinations, nil
	case o.Fate.Result == evaluator.Delivered:
		out.SourceReason, out.Source, out.Destinations = sourceReasonOf(&o.Fate), "kept", o.Destinations
		if o.Fate.Masqueraded {
			out.Source = "masqueraded"
		}
		f = e.byAddress
		if slices.ContainsFunc(o.Fate.Path, func(s evaluator.Step) bool { return s.Chain != nil && compiler.ServesNodePorts(s.Chain.Name) }) {
			f = e.byNodePort
		}
	}
	if f != nil && e.ServicePort == "" && out.Reason != ReasonUnknownPort && out.Reason != ReasonUnassigned {
		e.ServicePort = f.ServicePort
	}
	for i := range o.Fate.Path {
		out.Path = append(out.Path, newStep(&o.Fate.Path[i]))
	}
	for i := range o.Fate.Depends {
		out.DependsOn = append(out.DependsOn, newStep(&o.Fate.Depends[i]))
	}
	if e.rules.KubeProxys() && o.Fate.Result == evaluator.Delivered && !o.Fate.Untouched() {
		f = cmp.Or(e.byAddress, e.byNodePort)
		out.Reason, out.SourceReason = kubeProxyReasons(f, &o.Fate)
	}
	out.addRoutes(o, &e.rules.Host)
	out.Why = e.why(&out, &o.Fate, f)
	if by := e.decidedBy(&o.Fate); by != nil {
		out.DecidedBy, out.head = by, out.Result+" by "+by.name()
		out.Why = "another program's rule; " + e.intended(o)
		if o.Fate.Result == evaluator.Undecided {
			out.head = "not known: depends on " + by.name()
			out.Why = by.Verdict + "; " + e.intended(o)
		}
	}
	e.Outcomes = append(e.Outcomes, out)
}

func newStep(s *evaluator.Step) step {
	shown := step{Hook: string(s.Hook), Elements: s.Elements, Verdict: s.Verdict, Kind: s.Kind}
	if s.Chain != nil {
		shown.Table, shown.Chain = tableName(s.Table), s.Chain.Name
	}
	if s.Rule != nil {
		shown.Rule = s.Rule.String()
	}
	return shown
}

// name is the step's place in the ruleset, such as "inet fw, chain f (policy drop)".
func (s *step) name() string {
	if s.Rule == "" {
		return fmt.Sprintf("%s, chain %s (%s)", s.Table, s.Chain, s.Verdict)
	}
	return fmt.Sprintf("%s, chain %s: %s", s.Table, s.Chain, s.Rule)
}

// condition puts a step of DependsOn into words.
func (s *step) condition() string {
	switch s.Kind {
	case evaluator.StepOrder:
		return "depends on the order of chains: " + s.name()
	case evaluator.StepBridge:
		return "depends on the sender: " + s.Verdict
	}
	return fmt.Sprintf("depends on %s (%s)", s.name(), s.Verdict)
}

// decidedBy returns the step of another program that ended a packet's way; nil if none did. The last step that has a
// chain decided: a drop ends the path there. Rules of Kubernetes' kube-proxy count as the proxy's here, although the
// evaluator walks them as another program's (they have statements that nftproxy does not write). But if their result is
// not known, they are named, because the reader has to look at them.
func (e *Explanation) decidedBy(fate *evaluator.Fate) *step {
	if fate.Path.EndsInKernel() {
		return nil
	}
	for i := len(fate.Path) - 1; i >= 0; i-- {
		switch s := &fate.Path[i]; {
		case s.Chain == nil:
		case e.isProxys(s.Table) && fate.Result != evaluator.Undecided:
			return nil
		case fate.Result == evaluator.Delivered || s.Table.Kernel == nil || !s.Table.Kernel.Other:
			return nil
		default:
			by := newStep(s)
			return &by
		}
	}
	return nil
}

// intended says where the packet was going when another program dropped it.
func (e *Explanation) intended(o *evaluator.Outcome) string {
	if o.Fate.Destination == e.packet.Destination {
		return "its destination was not translated before"
	}
	var to []string
	for _, d := range o.Destinations[:min(len(o.Destinations), explainShown)] {
		to = append(to, d.String())
	}
	return "the packet was on its way to " + strings.Join(to, " or ")
}

func tableName(t *nft.Table) string { return t.Family.String() + " " + t.Name }

// explainShown bounds the destinations, and the elements of one rule, that are printed for people.
const explainShown = 10

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

// drawnFrom returns the number of endpoints among which the rules chose. An outcome may name fewer destinations, since a
// packet that was traced has one.
func drawnFrom(f *compiler.Frontend, o *Outcome) int {
	hasAll := func(list []netip.AddrPort) bool {
		return !slices.ContainsFunc(o.Destinations, func(d netip.AddrPort) bool { return !slices.Contains(list, d) })
	}
	switch {
	case f == nil:
	case o.SourceReason == SourcePolicyLocal && hasAll(f.LocalEndpoints):
		return len(f.LocalEndpoints)
	case hasAll(f.Endpoints):
		return len(f.Endpoints)
	}
	return len(o.Destinations)
}

// readAffinity reads the affinity maps of a frontend from the kernel, and finds the packet's client in them.
func (e *Explanation) readAffinity(s *ruledump.Snapshot, f *compiler.Frontend) error {
	t := s.Table(f.Family)
	for _, name := range f.AffinityMaps {
		set := t.Set(name)
		if set == nil {
			continue
		}
		if s.ReadClients != nil {
			clients, err := s.ReadClients(t, set)
			if err != nil {
				return err
			}
			for _, c := range clients {
				set.Put(c)
			}
		}
		found, ok := set.Element(nft.AddrData(e.packet.Source.Addr()))
		if to, isEndpoint := compiler.ParseEndpoint(found.Value); ok && isEndpoint {
			e.Affinity = append(e.Affinity, client{name, to, int(found.Expires.Seconds()), set.Len()})
		}
	}
	return nil
}

// Text implements View.
func (e *Explanation) Text(p *Page) {
	if p.Format == "svg" {
		p.WriteString(e.svg())
		return
	}
	p.printf("%s\n\n", e.Packet)
	fates := equalFates(e.Outcomes)
	if len(fates) > 1 {
		p.printf("%d possible fates\n\n", len(fates))
	}
	for i, equal := range fates {
		if i > 0 {
			p.WriteByte('\n')
		}
		printFate(p, equal)
	}
	e.printPlaces(p)
	for _, c := range e.Affinity {
		p.printf("\nsession affinity: %s keeps the client at %s for %d s more (clients in the map: %d)\n", c.Map, c.Endpoint, c.ExpiresSeconds, c.Clients)
	}
	e.printConnections(p)
	for i, name := range e.NotLookedAt {
		if i == 0 {
			p.printf("\nnot looked at:\n")
		}
		p.printf("  %s\n", name)
	}
}
