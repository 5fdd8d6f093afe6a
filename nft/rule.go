package nft

import (
	"slices"
	"strings"
)

// Rule is a sequence of statements. They run in this order, up to the first match that fails.
type Rule struct {
	// Statements are the matches and actions; none means a rule that does nothing.
	Statements []Statement
	// Comment is shown by nft; at most 127 bytes.
	Comment string
}

// NewRule returns a rule with the statements and without a comment.
func NewRule(statements ...Statement) Rule { return Rule{Statements: statements} }

// String prints the rule as nft lists it.
func (r Rule) String() string {
	var words []string
	for _, s := range r.Statements {
		words = append(words, s.String())
	}
	if r.Comment != "" {
		words = append(words, "comment "+quote(r.Comment))
	}
	return strings.Join(words, " ")
}

// setOf returns the name of the set that a statement refers to; empty for none.
func setOf(s Statement) string {
	switch s := s.(type) {
	case InSet:
		return s.Set
	case Vmap:
		return s.Map
	case DNAT:
		return s.Map
	case Update:
		return s.Map
	}
	return ""
}

func sameRules(a, b []Rule) bool {
	return slices.EqualFunc(a, b, func(x, y Rule) bool { return x.String() == y.String() })
}
