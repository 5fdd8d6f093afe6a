package nft

import (
	"cmp"
	"slices"
	"strings"
)

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
