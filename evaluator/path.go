package evaluator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// Path is the list of a packet's steps, in order.
type Path []Step

// Step is a rule that matched or set the mark, the end of a chain without a decision, or a decision of the kernel.
type Step struct {
	// Hook is the hook at which the step happened.
	Hook nft.Hook
	// Table and Chain are those of the rule; nil for a decision of the kernel, such as routing.
	Table *nft.Table
	Chain *nft.Chain
	// Level is the number of jumps and gotos that led to the chain: 0 in a base chain.
	Level int
	// Rule is the rule; nil at the end of a chain in which no rule decided, and for a decision of the kernel.
	Rule *nft.Rule
	// Elements are those that the rule found in or added to sets and maps, as nft prints them.
	Elements []string
	// Verdict is the result, such as "goto cluster-3", "continue", "policy accept" or "routing: forwarded".
	Verdict string
}

func (w *walk) step(at place, r *nft.Rule, verdict string, elements ...string) {
	w.fate.Path = append(w.fate.Path, Step{
		Hook: w.hook, Table: at.Table, Chain: at.chain, Level: at.level,
		Rule: r, Elements: elements, Verdict: verdict,
	})
}

// note adds a step for a decision of the kernel.
func (w *walk) note(text string) {
	w.fate.Path = append(w.fate.Path, Step{Hook: w.hook, Verdict: text})
}

// String prints one step a line, under its hook, indented by its Level.
func (p Path) String() string {
	var b strings.Builder
	p.print(&b, "")
	return b.String()
}

func (p Path) print(b *strings.Builder, indent string) {
	var hook nft.Hook
	for _, s := range p {
		if s.Hook != hook {
			hook = s.Hook
			fmt.Fprintf(b, "%s%s\n", indent, hook)
		}
		s.print(b, indent+strings.Repeat("  ", 1+s.Level))
	}
}

func (s *Step) print(b *strings.Builder, indent string) {
	if s.Chain == nil {
		fmt.Fprintf(b, "%s%s\n", indent, s.Verdict)
		return
	}
	where := s.Chain.Name
	if s.Level == 0 {
		where = s.Table.Family.String() + " " + s.Table.Name + " " + where
	}
	switch {
	case s.Rule == nil:
		fmt.Fprintf(b, "%s%s: %s\n", indent, where, s.Verdict)
	case s.obvious():
		fmt.Fprintf(b, "%s%s: %s\n", indent, where, s.Rule)
	default:
		fmt.Fprintf(b, "%s%s: %s (%s)\n", indent, where, s.Rule, s.Verdict)
	}
	for _, e := range s.Elements {
		fmt.Fprintf(b, "%s    %s\n", indent, e)
	}
}

// obvious reports whether the text of the step's rule or element shows its verdict.
func (s *Step) obvious() bool {
	if s.Verdict == "continue" {
		return true
	}
	for _, text := range append(s.Elements[:len(s.Elements):len(s.Elements)], nft.Rule{Statements: s.Rule.Statements}.String()) {
		if strings.HasSuffix(text, s.Verdict) {
			return true
		}
	}
	return false
}

// group is a group of fates of the same rules.
type group struct {
	fate         *Fate
	destinations []string
	path         Path
}

// groups groups fates that differ in nothing but elements and destinations.
func (f Fates) groups() []*group {
	var out []*group
	byRoute := map[string]*group{}
	for i := range f {
		fate := &f[i]
		route := fate.route()
		g := byRoute[route]
		if g == nil {
			g = &group{fate: fate, path: slices.Clone(fate.Path)}
			byRoute[route] = g
			out = append(out, g)
		}
		g.add(fate)
	}
	return out
}

// route identifies the rules that led to a fate.
func (f *Fate) route() string {
	var b strings.Builder
	fmt.Fprint(&b, f.Result, f.Local, f.Masqueraded, f.Untouched())
	for _, s := range f.Path {
		fmt.Fprintf(&b, " %s %p %p %s", s.Hook, s.Chain, s.Rule, s.Verdict)
	}
	return b.String()
}

// add merges a fate of the same route into the group.
func (g *group) add(f *Fate) {
	if d := formatAddrPort(f.Destination); !slices.Contains(g.destinations, d) {
		g.destinations = append(g.destinations, d)
	}
	for i := range f.Path {
		have := &g.path[i]
		for _, e := range f.Path[i].Elements {
			if !slices.Contains(have.Elements, e) {
				have.Elements = append(have.Elements[:len(have.Elements):len(have.Elements)], e)
			}
		}
	}
}

func (g *group) print(b *strings.Builder) {
	fmt.Fprintf(b, "%s\n", g.fate.describe(g.destinations))
	g.path.print(b, "  ")
}
