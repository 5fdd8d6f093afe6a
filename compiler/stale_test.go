package compiler

import (
	"iter"
	"maps"
	"slices"
	"testing"

	"github.com/nftproxy/nftproxy/nft"
	"pgregory.net/rapid"
)

// The elements of other sets that an earlier process committed and that are not wanted any more tell which endpoints
// are stale.
func TestStaleEndpoints(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		config, limits := randomConfig(drawn{r}), fewFrontends(drawn{r})
		compiled := func() *Compiler {
			c := &cluster{failer: r, chooser: drawn{r}, config: config, limits: limits}
			c.run(rapid.IntRange(1, 10).Draw(r, "events"))
			return c.compiler
		}
		before, after := compiled(), compiled()
		for i, want := range after.Tables() {
			have := before.Tables()[i]
			deleted := map[*nft.Set][]nft.Element{}
			for _, step := range nft.Diff(have, want).Steps {
				if step.Op == nft.AddTable || step.Op == nft.DeleteSet {
					return // nobody knows the elements of such a set, so a large one is listed
				}
				if step.Op == nft.DeleteElements {
					deleted[step.Set] = slices.Collect(step.EachElement())
				}
			}
			checkStale(r, after, deleted)
		}
	})
}

// An element that somebody else added may lead to a chain that draws from a map with other keys. The number in the
// chain's name is no reason to count to it.
func TestStaleEndpointsOfForeignElement(t *testing.T) {
	c := newCompiler(t)
	sets := &c.families[0].sets
	foreign := nft.Element{Key: "\x0a\x60\x00\x01\x06\x00\x00\x00\x00\x50\x00\x00", Verdict: nft.Goto("nodeport-cluster-9000000000000000000")}
	deleted := func(yield func(*nft.Set, nft.Element) bool) { yield(sets.addresses.services, foreign) }
	for key := range c.StaleEndpoints(sets.nodePorts.endpoints, deleted) {
		t.Fatalf("%q may be a stale key of a map with keys of %d bytes", key, sets.nodePorts.endpoints.Key.Len())
	}
}

// checkStale checks that the keys of all deleted endpoints are known from the other deleted elements.
func checkStale(r *rapid.T, c *Compiler, deleted map[*nft.Set][]nft.Element) {
	others := func(endpoints *nft.Set) iter.Seq2[*nft.Set, nft.Element] {
		return func(yield func(*nft.Set, nft.Element) bool) {
			for set, elements := range deleted {
				for _, e := range elements {
					if set != endpoints && !yield(set, e) {
						return
					}
				}
			}
		}
	}
	for _, f := range c.served() {
		for _, of := range []*frontendSets{&f.sets.addresses, &f.sets.nodePorts} {
			for _, endpoints := range []*nft.Set{of.endpoints, of.localEndpoints} {
				known := maps.Collect(keyed(c.StaleEndpoints(endpoints, others(endpoints))))
				for _, e := range deleted[endpoints] {
					if _, wanted := endpoints.Element(e.Key); !wanted && !known[e.Key] {
						r.Fatalf("the stale element %s of %s is not known", endpoints.FormatElement(e), endpoints.Name)
					}
				}
			}
		}
	}
}

func keyed(keys iter.Seq[nft.Data]) iter.Seq2[nft.Data, bool] {
	return func(yield func(nft.Data, bool) bool) {
		for key := range keys {
			if !yield(key, true) {
				return
			}
		}
	}
}
