package dump

import "github.com/nftproxy/nftproxy/nft"

// Counts holds the counts of elements of sets with nft.Set.Counter, by set and key.
type Counts map[CountedSet]map[nft.Data]nft.Count

// CountedSet identifies a set in the tables of one node.
type CountedSet struct {
	// Family is that of the set's table.
	Family nft.Family
	// Set is the name of the set.
	Set string
}

// Put adds the count of an element.
func (c Counts) Put(set CountedSet, key nft.Data, n nft.Count) {
	if c[set] == nil {
		c[set] = map[nft.Data]nft.Count{}
	}
	c[set][key] = n
}
