package verb

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
)

func newGraphCommand() *cobra.Command {
	var from sourceOfServices
	format := newFormat("mermaid", "dot")
	cmd := &cobra.Command{
		Use:   "graph SERVICE",
		Short: "Draw the way that the packets of a Service take",
		Long: `graph draws the way that the packets of a Service take on this node: from the addresses that
clients dial, through the chains that serve them, to endpoints. Dashed lines lead to where
clients get no answer. Long lists are folded, so a Service with 200 endpoints fits.

It prints Mermaid's text: in a code block with the word mermaid, GitHub and GitLab show it as a
drawing, for example in an issue. With -o dot it prints Graphviz's text.`,
		Example: `  ruledump graph shop/web

  # A picture by Graphviz, with the nodes of endpoints.
  ruledump graph shop/web --kubeconfig ~/.kube/config --node node-1 -o dot | dot -Tsvg > web.svg`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, filter, err := from.open(cmd, args)
			if err != nil {
				return err
			}
			defer s.Close()
			g, err := Draw(s.Snapshot, filter)
			if err != nil {
				return err
			}
			if format.value == "dot" {
				return g.DOT(cmd.OutOrStdout())
			}
			return g.Mermaid(cmd.OutOrStdout())
		},
	}
	from.addTo(cmd, "namespace of the Service")
	format.addTo(cmd)
	return cmd
}

// Graph has boxes in columns, and edges from each column to the next.
type Graph struct {
	// Title names the Service and the node.
	Title string
	// Columns are the boxes from left to right, and in each column from top to bottom.
	Columns [columns][]*Box
	// Edges lead from boxes of one column to boxes of the next.
	Edges []Edge
}

// The columns, from left to right: addresses that clients dial, chains that serve them, endpoints.
const (
	dialed = iota
	serving
	ending
	columns
)

var headings = [columns]string{"clients dial", "the node", "and they reach"}

// Box is a node of the graph.
type Box struct {
	// Lines is its text. The first line is its name.
	Lines []string
	// Dead says that packets end here without an answer from an endpoint.
	Dead bool
	key  string
}

// Edge leads from one box to one of the next column.
type Edge struct {
	// From is to the left of To.
	From, To *Box
}

// Longer lists are folded, so that a Service with 200 endpoints can be drawn.
const (
	maxFrontends = 12
	maxEndpoints = 8
	maxSources   = 3
)

// Draw draws the Service that the filter selects. A name that exists in several namespaces is an error.
func Draw(s *ruledump.Snapshot, filter Filter) (*Graph, error) {
	frontends, err := s.Frontends()
	if err != nil {
		return nil, err
	}
	var own []*compiler.Frontend
	names := map[string]bool{}
	for _, f := range frontends {
		if filter.Matches(f.ServicePort) {
			own = append(own, f)
			namespace, name, _ := splitServicePort(f.ServicePort)
			names[namespace+"/"+name] = true
		}
	}
	switch {
	case len(own) == 0:
		return nil, fmt.Errorf("the rules have no %s: see whether it exists, is not headless or ExternalName, and has a ClusterIP", filter)
	case len(names) > 1:
		return nil, fmt.Errorf("%d Services are called %s: give a namespace", len(names), filter.Name)
	}
	g := &Graph{}
	for name := range names {
		g.Title = name
	}
	if s.Node != "" {
		g.Title += " on " + ruledump.NodeText(s.Node, s.NodeSource)
	}
	d := drawing{g, s}
	for i, f := range own {
		if i == maxFrontends {
			g.box(dialed, Box{Lines: []string{fmt.Sprintf("… and %d more addresses", len(own)-i)}})
			break
		}
		d.frontend(f)
	}
	return g, nil
}

// box returns the box with that text in a column, and adds it if there is none.
func (g *Graph) box(column int, b Box) *Box {
	b.key = strings.Join(b.Lines, "\n") + b.key
	for _, have := range g.Columns[column] {
		if have.key == b.key {
			return have
		}
	}
	g.Columns[column] = append(g.Columns[column], &b)
	return &b
}

func (g *Graph) edge(from, to *Box) {
	if !slices.Contains(g.Edges, Edge{from, to}) {
		g.Edges = append(g.Edges, Edge{from, to})
	}
}

// drawing draws frontends into a graph.
type drawing struct {
	*Graph
	snapshot *ruledump.Snapshot
}

func (d *drawing) frontend(f *compiler.Frontend) {
	_, _, port := splitServicePort(f.ServicePort)
	kind := map[compiler.FrontendKind]string{compiler.FrontendClusterIP: "ClusterIP", compiler.FrontendExternal: "external IP", compiler.FrontendNodePort: "node port"}[f.Kind]
	if port != "" {
		kind += ", port " + port
	}
	b := Box{Lines: []string{addressOf(f) + "/" + f.Protocol.String(), kind}}
	if f.Sources != nil {
		b.Lines = append(b.Lines, "only from "+foldedPrefixes(f.Sources, maxSources, "nobody"))
	}
	from := d.box(dialed, b)
	if f.Sources != nil {
		d.edge(from, d.dead("all others: dropped", "loadBalancerSourceRanges"))
	}
	if f.Chain != "" {
		d.chain(from, f, f.Chain, f.Policy == "Local" && f.Kind != compiler.FrontendClusterIP)
	}
	if f.ShortCircuit != "" {
		d.chain(from, f, f.ShortCircuit, false)
	}
	switch {
	case f.Unserved == compiler.UnservedReject:
		d.edge(d.through(from, "no endpoint on any node"), d.box(ending, Box{Lines: []string{"refused", "ICMP port unreachable"}, Dead: true}))
	case f.Unserved == compiler.UnservedDrop && f.Chain == "":
		d.edge(d.through(from, "policy Local,", "no endpoint on this node"), d.box(ending, Box{Lines: []string{"dropped"}, Dead: true}))
	}
}

// through adds a box between a frontend and its endpoints.
func (d *drawing) through(from *Box, lines ...string) *Box {
	b := d.box(serving, Box{Lines: lines, Dead: true})
	d.edge(from, b)
	return b
}

func (d *drawing) dead(lines ...string) *Box { return d.box(serving, Box{Lines: lines, Dead: true}) }

// chain draws a chain and its endpoints. Under policy Local there are two: isLocal is that for the clients that the
// policy binds.
func (d *drawing) chain(from *Box, f *compiler.Frontend, chain string, isLocal bool) {
	list := f.Endpoints
	if isLocal {
		list = f.LocalEndpoints
	}
	if len(list) == 0 {
		at := d.through(from, chain, "clients outside the cluster:", "no endpoint on this node")
		d.edge(at, d.box(ending, Box{Lines: []string{"dropped"}, Dead: true}))
		return
	}
	b := Box{Lines: append([]string{chain}, d.describe(f, chain)...), key: fmt.Sprint(list)}
	if f.AffinityTimeout > 0 {
		b.Lines = append(b.Lines, "a client stays for "+shortDuration(f.AffinityTimeout))
	}
	at := d.box(serving, b)
	d.edge(from, at)
	where := ""
	if isLocal {
		where = " on this node"
	}
	d.edge(at, d.box(ending, Box{Lines: d.endpoints(list, where)}))
}

// notLocalMasqueraded describes a chain that marks clients from outside the cluster.
var notLocalMasqueraded = []string{"the cluster's own clients: source kept", "all others: source masqueraded"}

// describe returns the clients that a chain serves, and the treatment of their source addresses.
func (d *drawing) describe(f *compiler.Frontend, chain string) []string {
	switch compiler.RoleOf(chain) {
	case compiler.RoleServeExternal:
		return []string{"source masqueraded"}
	case compiler.RoleServeLocal:
		return []string{"clients outside the cluster", "source kept"}
	case compiler.RoleServeDirect:
		return []string{"the cluster's own clients: source kept", "this node: source masqueraded"}
	}
	switch first := d.firstStatement(f, chain).(type) {
	case nft.SetMark:
		return []string{"source masqueraded"}
	case nft.Match:
		if _, ok := first.Value.(netip.Prefix); ok {
			return notLocalMasqueraded
		}
	case nft.Verdict:
		if compiler.RoleOf(first.Chain) == compiler.RoleMarkUnlessLocal {
			return notLocalMasqueraded
		}
	}
	return []string{"source kept"}
}

func (d *drawing) firstStatement(f *compiler.Frontend, chain string) nft.Statement {
	for _, t := range d.snapshot.Tables {
		if c := t.Chain(chain); c != nil && t.Family == f.Family && len(c.Rules) > 0 && len(c.Rules[0].Statements) > 0 {
			return c.Rules[0].Statements[0]
		}
	}
	return nil
}

// endpoints lists endpoints. It folds a long list.
func (d *drawing) endpoints(list []netip.AddrPort, where string) []string {
	lines := []string{"1 endpoint" + where}
	if len(list) > 1 {
		lines[0] = fmt.Sprintf("%d endpoints%s, equal probability", len(list), where)
	}
	for i, e := range list {
		if i == maxEndpoints-1 && len(list) > maxEndpoints {
			return append(lines, fmt.Sprintf("… and %d more", len(list)-i))
		}
		line := e.String()
		if p := d.snapshot.Places[e.Addr()]; p != (ruledump.Place{}) {
			line += "  " + strings.Trim(p.Node+" "+p.Zone, " ")
		}
		lines = append(lines, line)
	}
	return lines
}

func foldedPrefixes(list []netip.Prefix, n int, none string) string {
	var texts []string
	for i, p := range list {
		if i == n {
			texts = append(texts, fmt.Sprintf("%d more", len(list)-i))
			break
		}
		texts = append(texts, p.String())
	}
	if len(texts) == 0 {
		return none
	}
	return strings.Join(texts, ", ")
}

// escapes are the characters that Mermaid reads in a quoted text, as it wants them written.
var escapes = strings.NewReplacer("#", "#35;", `"`, "#quot;", "<", "#lt;", ">", "#gt;", "\n", "<br>")

// Mermaid writes the graph as Mermaid's text, which Markdown on GitHub and GitLab shows as a drawing. Packets end without
// an answer where lines are dashed.
func (g *Graph) Mermaid(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "---\ntitle: %q\n---\nflowchart LR\n", g.Title)
	for column, boxes := range g.Columns {
		if len(boxes) == 0 {
			continue
		}
		fmt.Fprintf(&b, "  subgraph c%d [%s]\n", column, headings[column])
		for i, box := range boxes {
			class := ""
			if box.Dead {
				class = ":::dead"
			}
			fmt.Fprintf(&b, "    %s[\"%s\"]%s\n", boxName(column, i), escapes.Replace(strings.Join(box.Lines, "\n")), class)
		}
		b.WriteString("  end\n")
	}
	g.eachEdge(func(from, to string, dead bool) {
		arrow := "-->"
		if dead {
			arrow = "-.->"
		}
		fmt.Fprintf(&b, "  %s %s %s\n", from, arrow, to)
	})
	b.WriteString("  classDef dead stroke:#b3261e,stroke-dasharray:5 3\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// boxName returns the name of a box in a drawing's text.
func boxName(column, i int) string { return fmt.Sprintf("c%d_%d", column, i) }

// eachEdge calls f for each edge with the names of its boxes. dead says that packets end in the second.
func (g *Graph) eachEdge(f func(from, to string, dead bool)) {
	names := map[*Box]string{}
	for column, boxes := range g.Columns {
		for i, box := range boxes {
			names[box] = boxName(column, i)
		}
	}
	for _, e := range g.Edges {
		f(names[e.From], names[e.To], e.To.Dead)
	}
}

// DOT writes the graph for Graphviz.
func (g *Graph) DOT(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "digraph {\n  label=%q; labelloc=t; rankdir=LR; node [shape=box, style=rounded, fontname=monospace];\n", g.Title)
	for column, boxes := range g.Columns {
		fmt.Fprintf(&b, "  subgraph { rank=same;\n")
		for i, box := range boxes {
			style := ""
			if box.Dead {
				style = `, style="rounded,dashed", color=red`
			}
			fmt.Fprintf(&b, "    %s [label=%q%s];\n", boxName(column, i), strings.Join(box.Lines, "\n"), style)
		}
		b.WriteString("  }\n")
	}
	g.eachEdge(func(from, to string, _ bool) { fmt.Fprintf(&b, "  %s -> %s;\n", from, to) })
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return err
}
