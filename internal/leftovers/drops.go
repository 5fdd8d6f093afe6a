package leftovers

import (
	"fmt"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// Drop is a base chain that drops every packet that no rule accepts on a condition: by its policy, or by a rule without a
// condition, in the chain itself or in a chain to which every packet jumps.
type Drop struct {
	// Chain is the name of the chain, such as "ip filter FORWARD".
	Chain string
	Hook  nft.Hook
	// Verdict is "drop", "reject" or "queue".
	Verdict string
	// AcceptsTranslated says that a rule of the same table accepts packets whose destination was translated.
	AcceptsTranslated bool
}

// String returns the chain, with a verdict other than drop: "ip filter FORWARD (reject)".
func (d Drop) String() string {
	if d.Verdict == drops {
		return d.Chain
	}
	return fmt.Sprintf("%s (%s)", d.Chain, d.Verdict)
}

// DropsAt returns the texts of Drops at a hook.
func (o *Others) DropsAt(hook nft.Hook) (chains []string) {
	for _, d := range o.Drops {
		if d.Hook == hook {
			chains = append(chains, d.String())
		}
	}
	return chains
}

// The verdicts of a walk, in nft's words.
const accepts, drops, rejects, queues, returns = "accept", "drop", "reject", "queue", "return"

var verdictNames = map[nft.VerdictKind]string{nft.VerdictAccept: accepts, nft.VerdictDrop: drops, nft.VerdictReturn: returns}

var dropHooks = []nft.Hook{nft.HookInput, nft.HookForward, nft.HookOutput}

// A step is the effect of a rule on packets that meet no condition.
type step struct {
	// verdict is the verdict for every packet; empty if the packet goes on, or if the rule has a condition.
	verdict string
	// to is the chain to which every packet jumps, or goes (goto) if leads is set.
	to    string
	leads bool
	// accepts says that the rule accepts packets whose destination was translated.
	accepts bool
}

// stepOf returns the step of a rule. An unknown statement counts as a condition.
func stepOf(r nft.Rule, u Use) step {
	s := step{accepts: u.translated && u.accepts}
	for _, statement := range r.Statements {
		switch x := statement.(type) {
		case nft.Counter, nft.Assign, nft.Notrack:
		case nft.Reject:
			s.verdict = rejects
		case nft.Verdict:
			s.verdict, s.to, s.leads = verdictNames[x.Kind], x.Chain, x.Kind == nft.VerdictGoto
		case nft.Unknown:
			if x.Name == "queue" {
				s.verdict = queues
			} else if x.Name != "log" {
				return s
			}
		case nft.Extension:
			if x.Target && x.Name == "NFQUEUE" {
				s.verdict = queues
			} else if !x.Target || !slices.Contains([]string{"AUDIT", "LOG", "NFLOG", "TRACE"}, x.Name) {
				return s
			}
		default:
			return s
		}
	}
	return s
}

// A walk follows packets through the chains of one table, as far as no condition decides.
type walk struct {
	of table
	// base are the base chains, with the verdicts that are their policies.
	base []Drop
	// steps holds the steps of each chain, without zero steps.
	steps map[string][]step
	// ends holds the verdicts at the end of chains that were walked.
	ends map[string]string
	// accepts says that a reachable rule accepts packets whose destination was translated.
	accepts bool
}

func newWalk(of table) *walk {
	return &walk{of: of, steps: map[string][]step{}, ends: map[string]string{}}
}

// addBase adds a base chain.
func (w *walk) addBase(chain string, hook nft.Hook, dropPolicy bool) {
	policy := accepts
	if dropPolicy {
		policy = drops
	}
	w.base = append(w.base, Drop{Chain: chain, Hook: hook, Verdict: policy})
}

func (w *walk) add(chain string, s step) {
	if s != (step{}) {
		w.steps[chain] = append(w.steps[chain], s)
	}
}

// end returns the verdict of a chain for packets that meet no condition; returns if none of its rules decides.
func (w *walk) end(chain string) (end string) {
	if end, known := w.ends[chain]; known {
		return end
	}
	w.ends[chain] = returns // ends a loop of chains: the kernel refuses loops, but other programs may commit during the listing
	defer func() { w.ends[chain] = end }()
	for _, s := range w.steps[chain] {
		w.accepts = w.accepts || s.accepts
		if s.to != "" {
			s.verdict = w.end(s.to)
			if s.verdict == returns && !s.leads {
				continue
			}
		}
		if s.verdict != "" {
			return s.verdict
		}
	}
	return returns
}

// drops returns the base chains of the hooks input, forward and output that let no packet pass.
func (w *walk) drops() (list []Drop) {
	for chain := range w.steps {
		w.end(chain)
	}
	for _, d := range w.base {
		if end := w.end(d.Chain); end != returns {
			d.Verdict = end
		}
		if d.Verdict != accepts && slices.Contains(dropHooks, d.Hook) {
			list = append(list, Drop{w.of.chain(d.Chain), d.Hook, d.Verdict, w.accepts})
		}
	}
	return list
}
