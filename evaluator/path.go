package evaluator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// Path is the list of a packet's steps, in order.
type Path []Step

// StepKind says what happened in a Step.
type StepKind uint8

// The kinds of steps. The last four are in Fate.Depends.
const (
	// StepRule is a rule that matched.
	StepRule StepKind = iota
	// StepMarked is a rule that set the mark, and then did not match.
	StepMarked
	// StepPolicy is the end of a base chain in which no rule decided.
	StepPolicy
	// StepEnd is the end of a regular chain in which no rule matched.
	StepEnd
	// StepKernel is a decision of the kernel, such as routing. The Step has no Table, Chain and Rule.
	StepKernel
	// StepUnknown is a rule or a chain of another program whose result is not known. It ends the walk, and is also the last
	// one in Fate.Depends.
	StepUnknown
	// StepIf is a rule of which it is not known whether it matches.
	StepIf
	// StepDevices is a chain of which it is not known whether the packet comes by its devices.
	StepDevices
	// StepOrder is a chain of which it is not known whether it runs before other tables' chains of its priority.
	StepOrder
	// StepBridge is the choice between a bridge and the node, where it is not known which of them forwards the packet. The
	// Step has no Table, Chain and Rule.
	StepBridge
)

// Step is a rule that matched or set the mark, the end of a chain without a decision, or a decision of the kernel.
type Step struct {
	// Kind says what happened.
	Kind StepKind
	// Hook is the hook at which the step happened.
	Hook nft.Hook
	// Table and Chain are those of the rule; nil for a decision of the kernel, such as routing.
	Table *nft.Table
	Chain *nft.Chain
	// Level is the number of jumps and gotos that led to the chain: 0 in a base chain.
	Level int
	// Rule is the rule; nil at the end of a chain in which no rule decided, and for a decision of the kernel.
	Rule *nft.Rule
	// Elements are those that the rule found in or added to sets and maps, as nft prints them; and the ways by which the
	// kernel sends the packet on, such as "to 10.244.2.6 via 192.168.0.2 dev eth0".
	Elements []string
	// Decision is what a matching rule or a policy decided; the zero Verdict if the rule decided nothing.
	Decision nft.Verdict
	// Verdict is the result for people, such as "goto cluster-3", "continue", "policy accept" or "routing: forwarded".
	Verdict string
}

func (w *walk) newStep(kind StepKind, at place, r *nft.Rule, verdict string) Step {
	return Step{Kind: kind, Hook: w.hook, Table: at.Table, Chain: at.chain, Level: at.level, Rule: r, Verdict: verdict}
}

func (w *walk) add(s Step) { w.fate.Path = append(w.fate.Path, s) }

// routing begins the text of the kernel's decisions about routes.
const routing = "routing: "

// noteWay notes that the packet leaves, with the way if it is known.
func (w *walk) noteWay(text string) {
	s := Step{Kind: StepKernel, Hook: w.hook, Verdict: routing + text}
	if w.way.Destination.IsValid() && len(w.host.Rules) > 0 {
		w.fate.Route = w.way
		s.Elements = []string{fmt.Sprintf("to %s %s", w.destination.Addr(), w.way)}
	}
	w.add(s)
}

// note adds a step for a decision of the kernel.
func (w *walk) note(text string) { w.add(Step{Kind: StepKernel, Hook: w.hook, Verdict: text}) }

// dependsOn adds a step to Depends. Walks share the steps before it.
func (w *walk) dependsOn(s Step) { w.fate.Depends = append(slices.Clip(w.fate.Depends), s) }

// EndsInKernel reports whether the last step is a decision of the kernel.
func (p Path) EndsInKernel() bool { return len(p) > 0 && p[len(p)-1].Kind == StepKernel }

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
		for _, line := range s.Lines() {
			fmt.Fprintf(b, "%s  %s\n", indent, line)
		}
	}
}

// Lines prints the step without its hook, indented by its Level: the rule, then a line for each element.
func (s *Step) Lines() []string {
	switch {
	case s.Chain == nil && len(s.Elements) == 1:
		return []string{s.Verdict + " " + s.Elements[0]}
	case s.Chain == nil:
		lines := []string{s.Verdict}
		for _, e := range s.Elements {
			lines = append(lines, "    "+e)
		}
		return lines
	}
	indent, where := strings.Repeat("  ", s.Level), s.Chain.Name
	if s.Level == 0 {
		where = s.Table.Family.String() + " " + s.Table.Name + " " + where
	}
	text := s.Verdict
	switch {
	case s.Rule == nil:
	case s.obvious():
		text = s.Rule.String()
	default:
		text = fmt.Sprintf("%s (%s)", s.Rule, s.Verdict)
	}
	lines := []string{indent + where + ": " + text}
	for _, e := range s.Elements {
		lines = append(lines, indent+"    "+e)
	}
	return lines
}

// obvious reports whether the text of the step's rule, or of an element that the rule found, shows the decision.
func (s *Step) obvious() bool {
	return s.Kind == StepRule && (s.Decision == nft.Verdict{} || slices.ContainsFunc(s.Rule.Statements, func(statement nft.Statement) bool {
		_, isMap := statement.(nft.Vmap)
		return statement == s.Decision || isMap && len(s.Elements) > 0
	}))
}

// route identifies the rules that led to a fate.
func (f *Fate) route() string {
	var b strings.Builder
	fmt.Fprint(&b, f.Result, f.Local, f.Masqueraded, f.Untouched(), f.Failure)
	for _, s := range f.Path {
		fmt.Fprintf(&b, " %s %p %p %s", s.Hook, s.Chain, s.Rule, s.Verdict)
	}
	return b.String()
}
