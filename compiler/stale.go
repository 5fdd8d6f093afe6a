package compiler

import (
	"iter"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// StaleEndpoints returns the keys that a map of endpoints of an earlier state may have, and the wanted one may not:
// nft.Comparison.StaleKeys. deleted are the elements that other sets of that state have and the wanted ones have not.
// Those that lead frontends to endpoint chains tell how many endpoints the frontends had.
//
// StaleEndpoints may be called at any time, also while the compiler is in use.
func (c *Compiler) StaleEndpoints(endpoints *nft.Set, deleted iter.Seq2[*nft.Set, nft.Element]) iter.Seq[nft.Data] {
	return func(yield func(nft.Data) bool) {
		for set, e := range deleted {
			chain, ok := chainOf(set, e)
			if !ok || !c.drawsFrom(chain, endpoints) || len(e.Key+nft.IntegerData(0)) != endpoints.Key.Len() {
				continue // the last: somebody else's, and its chain may have any number in its name
			}
			for slot := range chain.count {
				if !yield(e.Key + nft.IntegerData(uint32(slot))) {
					return
				}
			}
		}
	}
}

// chainOf returns the endpoint chain to which an element leads its frontend.
func chainOf(set *nft.Set, e nft.Element) (endpointChain, bool) {
	if chain, ok := strings.CutPrefix(set.Name, chainSetPrefix); ok {
		return parseEndpointChain(chain)
	}
	if e.Verdict.Kind != nft.VerdictGoto {
		return endpointChain{}, false
	}
	return parseEndpointChain(e.Verdict.Chain)
}

// drawsFrom reports whether the chain chooses among the elements of the map, in one of the families.
func (c *Compiler) drawsFrom(chain endpointChain, endpoints *nft.Set) bool {
	for _, f := range c.served() {
		if f.sets.endpointsOf(chain) == endpoints {
			return true
		}
	}
	return false
}
