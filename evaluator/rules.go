package evaluator

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/nftproxy/nftproxy/nft"
)

// maxNesting bounds the chains on one path, the base chain included (NFT_JUMP_STACK_SIZE). The kernel refuses a ruleset
// with more, whether by jump or by goto.
const maxNesting = 16

// place is the walk's place in the ruleset.
type place struct {
	*nft.Table
	base  *nft.Chain
	chain *nft.Chain
	level int
	// external says that the rule is not one that the program of the table writes.
	external bool
}

func (p place) fail(err error) error {
	return fmt.Errorf("%s %s %s: %w", p.Family, p.Name, p.chain.Name, err)
}

// baseChain runs a base chain to its verdict: accept or drop.
func (w *walk) baseChain(c baseChain) (nft.Verdict, error) {
	// A chain without rules takes time, too.
	if w.statements++; w.others.spend(1) {
		return nft.Verdict{}, errors.New("the hooks have more chains than can be followed")
	}
	if c.isOther() {
		return w.otherChain(c)
	}
	at := place{Table: c.Table, base: c.chain, chain: c.chain}
	if c.chain.Type != nft.TypeFilter && c.chain.Type != nft.TypeNAT {
		return nft.Verdict{}, fmt.Errorf("%s %s %s: chain type %s: not modelled",
			c.Family, c.Name, c.chain.Name, c.chain.Type)
	}
	return w.runBaseChain(at)
}

func (w *walk) runBaseChain(at place) (nft.Verdict, error) {
	v, err := w.walkChain(at)
	if err != nil || v.Kind != 0 {
		return v, err
	}
	policy := nft.Accept
	if at.base.DropPolicy {
		policy = nft.Drop
	}
	s := w.newStep(StepPolicy, at, nil, "policy "+policy.String())
	s.Decision = policy
	w.add(s)
	return policy, nil
}

// walkChain runs the rules of a chain up to one that decides. The zero Verdict means that none does.
func (w *walk) walkChain(at place) (nft.Verdict, error) {
	steps := len(w.fate.Path)
	for i := range at.chain.Rules {
		r := &at.chain.Rules[i]
		v, err := w.rule(at, r)
		if err != nil {
			return nft.Verdict{}, at.fail(err)
		}
		switch v.Kind {
		case 0:
			continue
		case nft.VerdictReturn:
			return nft.Verdict{}, nil
		case nft.VerdictJump, nft.VerdictGoto:
			next, err := at.enter(v.Chain)
			if err != nil {
				return nft.Verdict{}, at.fail(fmt.Errorf("%s: %w", v, err))
			}
			decided, err := w.walkChain(next)
			if err != nil || decided.Kind != 0 || v.Kind == nft.VerdictGoto {
				return decided, err
			}
		default:
			return v, nil
		}
	}
	if at.level > 0 && len(w.fate.Path) == steps {
		w.add(w.newStep(StepEnd, at, nil, "no rule matches"))
	}
	return nft.Verdict{}, nil
}

func (p place) enter(chain string) (place, error) {
	if p.level+1 == maxNesting {
		return p, fmt.Errorf("chains are nested more than %d deep, which no kernel allows", maxNesting)
	}
	next := p.Chain(chain)
	if next == nil || next.Hook != "" {
		return p, fmt.Errorf("there is no regular chain %s", chain)
	}
	return place{Table: p.Table, base: p.base, chain: next, level: p.level + 1}, nil
}

// rule runs the statements of a rule up to one that does not match or decides. If it depends on something unknown whether the
// rule matches, one of the ways is drawn as soon as that makes a difference.
func (w *walk) rule(at place, r *nft.Rule) (nft.Verdict, error) {
	at.external = r.External()
	s := &statements{walk: w, place: at, rule: r}
	before, asked := w.mark, false
	// settles draws whether all statements so far match.
	settles := func() bool {
		matches := !asked || w.draws.draw(2) == 1
		if asked {
			w.assume(at, r, matches)
		}
		asked = false
		return matches
	}
	for _, statement := range r.Statements {
		if w.statements++; w.statements > maxStatements || w.others.spend(1) {
			return nft.Verdict{}, errors.New("the rules take longer than can be followed")
		}
		res := s.run(statement)
		if why := cmp.Or(res.undecided, res.why); !at.lenient() && (res.undecided != "" || res.matches == maybe) {
			return nft.Verdict{}, fmt.Errorf("%s: %w", statement, NotKnown(why))
		}
		switch {
		case res.matches == no && w.mark != before:
			s.step(StepMarked, nft.Verdict{}, "no match, after setting the mark")
			return nft.Verdict{}, nil
		case res.matches == no, res.before != nil && !settles():
			return nft.Verdict{}, nil
		case res.before != nil:
			res.before()
		}
		asked = asked || res.matches == maybe
		if res.verdict.Kind == 0 && res.effect == nil && res.undecided == "" {
			continue
		}
		if !settles() {
			return nft.Verdict{}, nil
		}
		if res.undecided != "" {
			w.undecided(at, r, res.undecided)
			return nft.Drop, nil
		}
		if v, err := s.happens(res); err != nil || v.Kind != 0 {
			return v, err
		}
	}
	if !asked {
		s.step(StepRule, nft.Verdict{}, "continue")
	}
	return nft.Verdict{}, nil
}

// happens carries out a result. It returns the verdict, if that ends the rule.
func (s *statements) happens(res result) (nft.Verdict, error) {
	if res.effect != nil {
		if err := res.effect(); err != nil {
			return nft.Verdict{}, err
		}
	}
	if s.fate.Result == Undecided {
		return nft.Drop, nil // a copy of the packet is
	}
	if res.verdict.Kind == 0 {
		return nft.Verdict{}, nil
	}
	text := res.verdict.String()
	if s.fate.Result == Refused {
		text = "drop, port unreachable"
	}
	s.step(StepRule, res.verdict, text)
	return res.verdict, nil
}

// step adds the step of the rule, with the elements that it found.
func (s *statements) step(kind StepKind, decision nft.Verdict, text string) {
	step := s.newStep(kind, s.place, s.rule, text)
	step.Decision, step.Elements = decision, s.elements
	s.add(step)
}

// assume notes that the fate depends on whether a rule matches.
func (w *walk) assume(at place, r *nft.Rule, matches bool) {
	verdict := "if this does not match"
	if matches {
		verdict = "if this matches"
	}
	w.dependsOn(w.newStep(StepIf, at, r, verdict))
}
