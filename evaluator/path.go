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

// EndsInKernel reports whether the last step is a decision of the kernel.
func (p Path) EndsInKernel() bool { return len(p) > 0 && p[len(p)-1].Chain == nil }

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
	texts := append(slices.Clip(s.Elements), nft.Rule{Statements: s.Rule.Statements}.String())
	return s.Verdict == "continue" ||
		slices.ContainsFunc(texts, func(text string) bool { return strings.HasSuffix(text, s.Verdict) })
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
