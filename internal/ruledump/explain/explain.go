// Package explain walks one packet through the rules of a Snapshot. It returns each possible fate,
// the rules that lead there, and the reason in one sentence.
package explain

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump/dump"
	"github.com/nftproxy/nftproxy/internal/ruledump/snapshot"
	"github.com/nftproxy/nftproxy/nft"
)

// Explanation is the fate of the first packet of a connection, with the reasons.
type Explanation struct {
	// APIVersion is dump.APIVersion.
	APIVersion string `json:"apiVersion"`
	// Kind is "Explanation".
	Kind string `json:"kind"`
	// Node is the name of the node.
	Node string `json:"node,omitempty"`
	// NodeSource says where the name of a kernel's node comes from: "proxy" or "host-name".
	NodeSource string `json:"nodeSource,omitempty"`
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

// Explain walks the packet through the tables of a snapshot.
func Explain(s *snapshot.Snapshot, p evaluator.Packet) (*Explanation, error) {
	frontends, err := s.Frontends()
	if err != nil {
		return nil, err
	}
	p.Local = p.Local || p.Source.Addr().IsLoopback() || slices.Contains(s.Addresses, p.Source.Addr())
	e := &Explanation{APIVersion: dump.APIVersion, Kind: "Explanation", Node: s.Node, NodeSource: s.NodeSource, Packet: p.String(), packet: p}
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
		if f := dialed(frontends, p, nodePort); f != nil {
			out = append(out, f)
		}
	}
	return out
}

// dialed returns the frontend, of an address or of a node port, that has the packet's destination.
func dialed(frontends []*compiler.Frontend, p evaluator.Packet, nodePort bool) *compiler.Frontend {
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
		f = dialed(frontends, e.packet, throughNodePort(o.Fate.Path))
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

// shown is how many destinations, and elements of one rule, are printed for people.
const shown = 10

// head is the outcome in one line, with the first destinations.
func head(o *evaluator.Outcome) string {
	text := o.String()
	if n := len(o.Destinations); n > shown {
		first, after := o.Destinations[shown-1].String(), ""
		if at := strings.LastIndex(text, o.Destinations[n-1].String()); at >= 0 {
			after = text[at+len(o.Destinations[n-1].String()):]
		}
		before, _, _ := strings.Cut(text, first)
		return fmt.Sprintf("%s%s or %d more%s", before, first, n-shown, after)
	}
	return text
}

// folded returns the path with no more elements of each rule than are printed.
func folded(path evaluator.Path) evaluator.Path {
	path = slices.Clone(path)
	for i := range path {
		if e := path[i].Elements; len(e) > shown {
			path[i].Elements = append(e[:shown-1:shown-1], fmt.Sprintf("… and %d more", len(e)-shown+1))
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
func (e *Explanation) readAffinity(s *snapshot.Snapshot, f *compiler.Frontend) error {
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
