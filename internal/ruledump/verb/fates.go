package verb

import (
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/nft"
)

// equalFates groups the outcomes that print alike but for what they depend on.
func equalFates(outcomes []Outcome) (groups [][]Outcome) {
	at := map[string]int{}
	for _, o := range outcomes {
		text := o.head + o.Why + o.steps.String()
		if _, known := at[text]; !known {
			at[text] = len(groups)
			groups = append(groups, nil)
		}
		groups[at[text]] = append(groups[at[text]], o)
	}
	return groups
}

// printFate prints equal fates once, with the conditions of each.
func printFate(p *Page, equal []Outcome) {
	o := &equal[0]
	p.printf("%s\n  why: %s\n", p.headOf(o), o.Why)
	for _, r := range o.Remarks {
		p.printf("  %s\n", p.bad(r.String()))
	}
	for i, one := range equal {
		if i > 0 {
			p.printf("  or\n")
		}
		for _, d := range one.DependsOn {
			p.printf("  %s\n", d.condition())
		}
	}
	for line := range strings.Lines(o.steps.String()) {
		p.printf("  %s", line)
	}
}

// shownSteps leaves out the base chains that accept the packet without any effect: their rules jump to chains in which none
// matches.
func shownSteps(path evaluator.Path) (shown evaluator.Path) {
	for len(path) > 0 {
		n := 1
		for n < len(path) && path[0].Chain != nil && path[n].Chain != nil && path[n].Hook == path[0].Hook && path[n-1].Kind != evaluator.StepPolicy &&
			(path[n].Level > 0 || path[n].Chain == path[0].Chain) {
			n++
		}
		last := &path[n-1]
		accepts := last.Kind == evaluator.StepPolicy && last.Decision == nft.Accept
		if !accepts || slices.ContainsFunc(path[:n], hasEffect) {
			shown = append(shown, path[:n]...)
		}
		path = path[n:]
	}
	return shown
}

// hasEffect reports whether a step does more than jump to another chain, or end one.
func hasEffect(s evaluator.Step) bool {
	isJump := s.Kind == evaluator.StepRule && (s.Decision.Kind == nft.VerdictJump || s.Decision.Kind == nft.VerdictGoto) && len(s.Elements) == 0
	return !isJump && s.Kind != evaluator.StepEnd && s.Kind != evaluator.StepPolicy
}
