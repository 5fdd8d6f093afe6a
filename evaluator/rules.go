package evaluator

import (
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
	w.step(at, nil, "policy "+policy.String())
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
		w.step(at, nil, "no rule matches")
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

// rule runs the statements of a rule up to one that does not match or decides.
func (w *walk) rule(at place, r *nft.Rule) (nft.Verdict, error) {
	s := &statements{walk: w, place: at, rule: r}
	mark := w.mark
	for _, statement := range r.Statements {
		if w.statements++; w.statements > maxStatements {
			return nft.Verdict{}, errors.New("the rules take longer than can be followed")
		}
		matched, v, err := s.run(statement)
		switch {
		case err != nil:
			return nft.Verdict{}, fmt.Errorf("%s: %w", statement, err)
		case !matched && w.mark != mark:
			w.step(at, r, "no match, after setting the mark", s.elements...)
			return nft.Verdict{}, nil
		case !matched:
			return nft.Verdict{}, nil
		case w.fate.Result == Undecided:
			return v, nil
		case v.Kind != 0:
			text := v.String()
			if w.fate.Result == Refused {
				text = "drop, port unreachable"
			}
			w.step(at, r, text, s.elements...)
			return v, nil
		}
	}
	w.step(at, r, "continue", s.elements...)
	return nft.Verdict{}, nil
}
