package nft

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Chain is a chain with its rules. It is a base chain when Hook is set, and a regular chain otherwise.
type Chain struct {
	// Name is 1 to 255 bytes long.
	Name string
	// Type, Hook and Priority say where a base chain is called. Chains of one hook run in the order of their priorities,
	// lowest first.
	Type     ChainType
	Hook     Hook
	Priority int32
	// DropPolicy makes a base chain drop packets that no rule decides on, instead of accepting them.
	DropPolicy bool
	// Rules run in this order.
	Rules []Rule
	// Comment is shown by nft; at most 127 bytes.
	Comment string
	// bound says that the chain was read from the kernel and belongs to a rule ("jump { … }"). The kernel deletes it with
	// that rule.
	bound bool
}

// ChainType is the type of a base chain.
type ChainType string

// The chain types.
const (
	TypeFilter ChainType = "filter"
	TypeNAT    ChainType = "nat"
	// TypeRoute is for the hook output, in tables of other programs: a packet whose mark or address changes is routed again.
	TypeRoute ChainType = "route"
)

// Hook is the place in a packet's path where a base chain is called. Empty means a regular chain.
type Hook string

// The hooks.
const (
	HookPrerouting  Hook = "prerouting"
	HookInput       Hook = "input"
	HookForward     Hook = "forward"
	HookOutput      Hook = "output"
	HookPostrouting Hook = "postrouting"

	// HookIngress and HookEgress are hooks of family netdev. Family inet has ingress too.
	HookIngress Hook = "ingress"
	HookEgress  Hook = "egress"
)

// hookNumbers are the kernel's enum nf_inet_hooks.
var hookNumbers = []Hook{HookPrerouting, HookInput, HookForward, HookOutput, HookPostrouting}

// Priorities that service proxies use (enum nf_ip_hook_priorities).
const (
	PriorityMangle int32 = -150
	PriorityDstNAT int32 = -100
	PriorityFilter int32 = 0
	PrioritySrcNAT int32 = 100
)

// priorityString prints a priority as nft lists it for a chain of the hook: relative to a name if one is at most 10
// away.
func priorityString(p int32, hook Hook) string {
	for _, named := range []struct {
		name string
		at   int32
		hook Hook // where nft knows the name; empty for all hooks
	}{
		{"raw", -300, ""}, {"mangle", PriorityMangle, ""}, {"dstnat", PriorityDstNAT, HookPrerouting},
		{"filter", PriorityFilter, ""}, {"security", 50, ""}, {"srcnat", PrioritySrcNAT, HookPostrouting},
	} {
		if named.hook != "" && named.hook != hook {
			continue
		}
		switch d := p - named.at; {
		case d == 0:
			return named.name
		case d > 0 && d <= 10:
			return fmt.Sprintf("%s + %d", named.name, d)
		case d < 0 && d >= -10:
			return fmt.Sprintf("%s - %d", named.name, -d)
		}
	}
	return fmt.Sprint(p)
}

func (c *Chain) header() string {
	if c.Hook == "" {
		return ""
	}
	policy := "accept"
	if c.DropPolicy {
		policy = "drop"
	}
	return fmt.Sprintf("type %s hook %s priority %s; policy %s",
		c.Type, c.Hook, priorityString(c.Priority, c.Hook), policy)
}

// same reports whether two chains differ in nothing but their rules.
func (c *Chain) same(o *Chain) bool {
	return c.Type == o.Type && c.Hook == o.Hook && c.Priority == o.Priority &&
		c.DropPolicy == o.DropPolicy && sameComment(c.Comment, o.Comment)
}

func (c *Chain) appendText(b *strings.Builder) {
	fmt.Fprintf(b, "\tchain %s {\n", c.Name)
	if c.Comment != "" {
		fmt.Fprintf(b, "\t\t%s\n", commentText(c.Comment))
	}
	if c.Hook != "" {
		fmt.Fprintf(b, "\t\t%s;\n", c.header())
	}
	for _, r := range c.Rules {
		fmt.Fprintf(b, "\t\t%s\n", r)
	}
	b.WriteString("\t}\n")
}

// hookOrder is the position of a chain's hook in a packet's path; regular chains come last.
func hookOrder(c *Chain) int {
	if i := slices.Index(hookNumbers, c.Hook); i >= 0 {
		return i
	}
	return len(hookNumbers)
}

// compareNatural orders names with numbers at their end by the number: cluster-2 before cluster-10.
func compareNatural(a, b string) int {
	headA, numberA := splitNumber(a)
	headB, numberB := splitNumber(b)
	return cmp.Or(
		strings.Compare(headA, headB),
		cmp.Compare(len(numberA), len(numberB)),
		strings.Compare(numberA, numberB),
	)
}

func splitNumber(s string) (head, number string) {
	head = strings.TrimRight(s, "0123456789")
	return head, s[len(head):]
}

func compareElements(a, b Element) int { return cmp.Compare(a.Key, b.Key) }

// SortChains puts chains in the order in which this package's callers print them: base
// chains first, by hook and priority, then the others by name, numbers by value.
func SortChains(chains []*Chain) {
	slices.SortFunc(chains, func(a, b *Chain) int {
		return cmp.Or(cmp.Compare(hookOrder(a), hookOrder(b)), cmp.Compare(a.Priority, b.Priority), compareNatural(a.Name, b.Name))
	})
}
