package dump

import "github.com/nftproxy/nftproxy/nft"

// Counts is what the elements of sets with nft.Set.Counter have counted, by set and key.
type Counts map[CountedSet]map[nft.Data]nft.Count

// CountedSet identifies a set among the tables of one node.
type CountedSet struct {
	Family nft.Family
	Set    string
}

// Put adds what an element has counted.
func (c Counts) Put(set CountedSet, key nft.Data, n nft.Count) {
	if c[set] == nil {
		c[set] = map[nft.Data]nft.Count{}
	}
	c[set][key] = n
}
