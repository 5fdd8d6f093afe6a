package verb

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
)

func newGraphCommand() *cobra.Command {
	var from source
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
		Args: oneArgument("a Service, such as shop/web"),
	}
	from.addNamesTo(cmd)
	return from.shows(cmd, newFormat("mermaid", "dot"), func(_ *cobra.Command, s *ruledump.Snapshot, filter Filter) (View, error) {
		return Draw(s, filter)
	})
}

// Graph has boxes in columns, and edges from each column to the next.
type Graph struct {
	title   string
	columns [len(headings)][]*box
	edges   []edge
	// rules are those that are drawn.
	rules *ruledump.Snapshot
}

// The columns, from left to right.
const (
	dialed = iota
	serving
	ending
)

var headings = [...]string{"clients dial", "the node", "and they reach"}

// box is a node of the graph.
type box struct {
	name string
	// lines is its text, of which the first line names it.
	lines []string
	// dead says that packets end here without an answer from an endpoint.
	dead bool
	// key tells boxes with the same text apart.
	key string
}

type edge struct{ from, to *box }

// Longer lists are folded, so that a Service with 200 endpoints can be drawn.
const (
	maxFrontends = 12
	maxEndpoints = 8
	maxSources   = 3
)

// Draw draws the Service that the filter selects. A name that exists in several namespaces is an error.
func Draw(s *ruledump.Snapshot, filter Filter) (*Graph, error) {
	frontends, err := frontendsOf(s, filter)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	g := &Graph{rules: s}
	for _, f := range frontends {
		g.title, _, _ = strings.Cut(f.ServicePort, ":")
		names[g.title] = true
	}
	switch {
	case len(frontends) == 0:
		return nil, filter.notFound()
	case len(names) > 1:
		some := slices.Sorted(maps.Keys(names))
		return nil, fmt.Errorf("%s names %d Services: give one, such as %s", filter.text, len(names), some[0])
	}
	if s.Node != "" {
		g.title += " on " + aboutNode("", s).nodeText()
	}
	for _, f := range frontends[:min(len(frontends), maxFrontends)] {
		g.frontend(f)
	}
	if more := len(frontends) - maxFrontends; more > 0 {
		g.box(dialed, box{lines: []string{fmt.Sprintf("… and %d more addresses", more)}})
	}
	return g, nil
}

// box returns the box with that text in a column, and adds it if there is none.
func (g *Graph) box(column int, b box) *box {
	list := &g.columns[column]
	b.key = strings.Join(b.lines, "\n") + b.key
	if i := slices.IndexFunc(*list, func(have *box) bool { return have.key == b.key }); i >= 0 {
		return (*list)[i]
	}
	b.name = fmt.Sprintf("c%d_%d", column, len(*list))
	*list = append(*list, &b)
	return &b
}

func (g *Graph) edge(from, to *box) {
	if !slices.Contains(g.edges, edge{from, to}) {
		g.edges = append(g.edges, edge{from, to})
	}
}

var kindTexts = map[compiler.FrontendKind]string{
	compiler.FrontendClusterIP: "ClusterIP", compiler.FrontendExternal: "external IP", compiler.FrontendNodePort: "node port",
}

func (g *Graph) frontend(f *compiler.Frontend) {
	kind := kindTexts[f.Kind]
	if _, _, port := splitServicePort(f.ServicePort); port != "" {
		kind += ", port " + port
	}
	b := box{lines: []string{addressOf(f) + "/" + f.Protocol.String(), kind}}
	if f.Sources != nil {
		b.lines = append(b.lines, "only from "+cmp.Or(firstOf(f.Sources), "nobody"))
	}
	from := g.box(dialed, b)
	if f.Sources != nil {
		g.through(from, "all others: dropped", "loadBalancerSourceRanges")
	}
	if f.Chain != "" {
		g.chain(from, f, f.Chain, f.Policy == "Local" && f.Kind != compiler.FrontendClusterIP)
	}
	if f.ShortCircuit != "" {
		g.chain(from, f, f.ShortCircuit, false)
	}
	switch {
	case f.Unserved == compiler.UnservedReject:
		refused := box{lines: []string{"refused", "ICMP port unreachable"}, dead: true}
		g.edge(g.through(from, "no endpoint on any node"), g.box(ending, refused))
	case f.Unserved == compiler.UnservedDrop && f.Chain == "":
		g.drop(g.through(from, "policy Local,", "no endpoint on this node"))
	}
}

// through adds a box of packets that get no further.
func (g *Graph) through(from *box, lines ...string) *box {
	b := g.box(serving, box{lines: lines, dead: true})
	g.edge(from, b)
	return b
}

func (g *Graph) drop(from *box) {
	g.edge(from, g.box(ending, box{lines: []string{"dropped"}, dead: true}))
}

// chain draws a chain and its endpoints. Under policy Local there are two: isLocal is that for the clients that the
// policy binds.
func (g *Graph) chain(from *box, f *compiler.Frontend, chain string, isLocal bool) {
	list, where := f.Endpoints, ""
	if isLocal {
		list, where = f.LocalEndpoints, " on this node"
	}
	if len(list) == 0 {
		g.drop(g.through(from, chain, "clients outside the cluster:", "no endpoint on this node"))
		return
	}
	b := box{lines: append([]string{chain}, g.describe(f, chain)...), key: fmt.Sprint(list)}
	if f.AffinityTimeout > 0 {
		b.lines = append(b.lines, "a client stays for "+shortDuration(f.AffinityTimeout))
	}
	at := g.box(serving, b)
	g.edge(from, at)
	g.edge(at, g.box(ending, box{lines: g.endpoints(list, where)}))
}

// notLocalMasqueraded describes a chain that marks clients from outside the cluster.
var notLocalMasqueraded = []string{"the cluster's own clients: source kept", "all others: source masqueraded"}

// describe returns the clients that a chain serves, and the treatment of their source addresses.
func (g *Graph) describe(f *compiler.Frontend, chain string) []string {
	if g.rules.KubeProxys() {
		return describeKubeProxys(f, chain)
	}
	switch compiler.RoleOf(chain) {
	case compiler.RoleServeExternal:
		if !f.Masquerade {
			return []string{"clients outside the cluster: source kept, on the endpoint's node", "all others: source masqueraded"}
		}
		return []string{"source masqueraded"}
	case compiler.RoleServeLocal:
		return []string{"clients outside the cluster", "source kept"}
	case compiler.RoleServeAll:
		return []string{"the cluster's own clients: source kept", "this node: source masqueraded"}
	}
	if c := g.rules.Table(f.Family).Chain(chain); c != nil && len(c.Rules) > 0 && len(c.Rules[0].Statements) > 0 {
		switch first := c.Rules[0].Statements[0].(type) {
		case nft.Assign:
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
	}
	return []string{"source kept"}
}

// endpoints lists endpoints. It folds a long list.
func (g *Graph) endpoints(list []netip.AddrPort, where string) []string {
	lines := []string{"1 endpoint" + where}
	if len(list) > 1 {
		lines[0] = fmt.Sprintf("%d endpoints%s, equal probability", len(list), where)
	}
	for i, e := range list {
		if i == maxEndpoints-1 && len(list) > maxEndpoints {
			return append(lines, fmt.Sprintf("… and %d more", len(list)-i))
		}
		lines = append(lines, placed(e.String(), g.rules.Places[e.Addr()]))
	}
	return lines
}

// Text writes Mermaid's text, which Markdown on GitHub and GitLab shows as a drawing, or Graphviz's. Dashed lines
// lead to where packets end without an answer.
func (g *Graph) Text(p *Page) {
	if p.Format == "dot" {
		g.dot(p)
		return
	}
	p.printf("---\ntitle: %q\n---\nflowchart LR\n", g.title)
	// The characters that Mermaid reads in a quoted text.
	escapes := strings.NewReplacer("#", "#35;", `"`, "#quot;", "<", "#lt;", ">", "#gt;", "\n", "<br>")
	for column, boxes := range g.columns {
		if len(boxes) == 0 {
			continue
		}
		p.printf("  subgraph c%d [%s]\n", column, headings[column])
		for _, b := range boxes {
			p.printf("    %s[\"%s\"]", b.name, escapes.Replace(strings.Join(b.lines, "\n")))
			if b.dead {
				p.WriteString(":::dead")
			}
			p.WriteByte('\n')
		}
		p.WriteString("  end\n")
	}
	for _, e := range g.edges {
		arrow := "-->"
		if e.to.dead {
			arrow = "-.->"
		}
		p.printf("  %s %s %s\n", e.from.name, arrow, e.to.name)
	}
	p.WriteString("  classDef dead stroke:#b3261e,stroke-dasharray:5 3\n")
}

func (g *Graph) dot(p *Page) {
	p.printf("digraph {\n  label=%q; labelloc=t; rankdir=LR; node [shape=box, style=rounded, fontname=monospace];\n",
		g.title)
	for _, boxes := range g.columns {
		p.WriteString("  subgraph { rank=same;\n")
		for _, b := range boxes {
			style := ""
			if b.dead {
				style = `, style="rounded,dashed", color=red`
			}
			p.printf("    %s [label=%q%s];\n", b.name, strings.Join(b.lines, "\n"), style)
		}
		p.WriteString("  }\n")
	}
	for _, e := range g.edges {
		p.printf("  %s -> %s;\n", e.from.name, e.to.name)
	}
	p.WriteString("}\n")
}
