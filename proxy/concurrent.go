package proxy

import (
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// concurrentChanges records the objects and elements that the Backend committed while a comparison with the kernel ran.
// Differences in them are ignored: the comparison may have read them before the commit. A nil one records nothing.
type concurrentChanges struct {
	changed map[changeID]bool
	// all says that a table was replaced, or that more than maxConcurrent objects and elements were changed.
	all bool
}

// changeID identifies a chain, a set or an element of a set.
type changeID struct {
	family  nft.Family
	isChain bool
	name    string
	key     nft.Data
}

func changedBy(s nft.Step) changeID {
	if s.Chain != nil {
		return changeID{family: s.Table.Family, isChain: true, name: s.Chain.Name}
	}
	return changeID{family: s.Table.Family, name: s.Set.Name}
}

const maxConcurrent = 100_000

func newConcurrentChanges() *concurrentChanges {
	return &concurrentChanges{changed: map[changeID]bool{}}
}

func (c *concurrentChanges) note(tx nft.Transaction) {
	if c == nil {
		return
	}
	for _, s := range tx.Steps {
		if s.Chain == nil && s.Set == nil || len(c.changed)+s.Len() > maxConcurrent {
			c.all = true
			return
		}
		id := changedBy(s)
		if s.Len() == 0 {
			c.changed[id] = true
		}
		for e := range s.EachElement() {
			id.key = e.Key
			c.changed[id] = true
		}
	}
}

// without returns a transaction without the steps and elements on objects and elements that were noted. left says that
// it left some out. A commit may have undone these differences, or not: one that rewrites a chain leaves its policy.
func (c *concurrentChanges) without(tx nft.Transaction) (rest nft.Transaction, left bool) {
	for _, s := range tx.Steps {
		if s.Chain == nil && s.Set == nil {
			rest.Steps = append(rest.Steps, s)
			continue
		}
		id, all := changedBy(s), s.Len()
		gone := c.changed[id]
		if all > 0 {
			s.Elements = slices.DeleteFunc(slices.Collect(s.EachElement()), func(e nft.Element) bool {
				id.key = e.Key
				return c.changed[id]
			})
			s.All = false
			gone = gone || len(s.Elements) == 0
		}
		left = left || gone || s.Len() < all
		if !gone {
			rest.Steps = append(rest.Steps, s)
		}
	}
	return rest, left
}
