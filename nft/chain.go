package nft

import (
	"fmt"
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
)

// hookNumbers are the kernel's enum nf_inet_hooks.
var hookNumbers = []Hook{HookPrerouting, HookInput, HookForward, HookOutput, HookPostrouting}

// Priorities that service proxies use (enum nf_ip_hook_priorities).
const (
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
		{"raw", -300, ""}, {"mangle", -150, ""}, {"dstnat", PriorityDstNAT, HookPrerouting},
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
	return fmt.Sprintf("type %s hook %s priority %s; policy %s", c.Type, c.Hook, priorityString(c.Priority, c.Hook), policy)
}

// same reports whether two chains differ in nothing but their rules.
func (c *Chain) same(o *Chain) bool {
	return c.Type == o.Type && c.Hook == o.Hook && c.Priority == o.Priority && c.DropPolicy == o.DropPolicy && sameComment(c.Comment, o.Comment)
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
