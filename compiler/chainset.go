package compiler

import (
	"cmp"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// An element with a goto makes the kernel validate the table when it is committed: for each hook it walks all elements
// of the verdict maps that the hook's chains look up. With 44,000 frontends in service-ips that was all but 0.02 of the
// 4 ms that one more Service took. Elements of plain sets have no such price. So where many frontends go to one
// endpoint chain, they are in a set of that chain, for example service-ips-cluster-2, and a rule leads from the set to
// the chain.

// chainSetFrom is how many frontends give an endpoint chain a set of its own. Each such set costs a new connection one
// more lookup, so it is not small.
const chainSetFrom = 1000

// mayHaveSet reports whether the chain may have a set: few chains may, since packets go through the sets one by one.
func (c endpointChain) mayHaveSet() bool {
	return c.kind == kindCluster && !c.nodePort && c.affinity == chainAffinity{} && c.count > 0 && c.count <= spareChains
}

// placeOf returns the set or map that has the elements of frontends that go to the chain: its own set, or the given
// map.
func (e *endpointChains) placeOf(c endpointChain, verdicts *nft.Set) *nft.Set {
	if set := e.chainSets[c]; set != nil {
		return set
	}
	return verdicts
}

// updateChainSet gives the chain a set or takes it away, if the number of its frontends says so, and moves them.
func (f *family) updateChainSet(c endpointChain) {
	e := &f.endpointChains
	use := e.used[c]
	want := use != nil && use.frontends >= f.chainSetFrom && c.mayHaveSet()
	if want == (e.chainSets[c] != nil) {
		return
	}
	name := c.name()
	from := e.placeOf(c, f.sets.serviceIPs)
	if want {
		e.chainSets[c] = f.chainSet("service-ips-" + name)
		f.draft.PutSet(e.chainSets[c])
	} else {
		delete(e.chainSets, c)
	}
	to := e.placeOf(c, f.sets.serviceIPs)
	for _, s := range f.frontends {
		if first, _ := s.applied.chains(s.frontend); first == c {
			key := s.frontend.key()
			f.draft.Remove(from, key)
			f.draft.Put(to, gotoElement(to, key, name, s.applied.comment))
		}
	}
	if !want {
		f.draft.RemoveSet(from.Name)
	}
	f.putServices()
}

// chainSet returns the set of that name. There is one object for each name, since a draft knows sets by their pointers.
func (f *family) chainSet(name string) *nft.Set {
	if f.chainSets[name] == nil {
		f.chainSets[name] = &nft.Set{Name: name, Key: f.key(false)}
	}
	return f.chainSets[name]
}

// gotoElement returns the element that leads a frontend to a chain.
func gotoElement(in *nft.Set, key nft.Data, chain, comment string) nft.Element {
	e := nft.Element{Key: key, Comment: comment}
	if in.Verdicts {
		e.Verdict = nft.Goto(chain)
	}
	return e
}

// chainSetRules lead from the sets to their chains.
func (f *family) chainSetRules() (rules []nft.Rule) {
	var chains []endpointChain
	for c := range f.endpointChains.chainSets {
		chains = append(chains, c)
	}
	slices.SortFunc(chains, func(a, b endpointChain) int { return cmp.Compare(a.count, b.count) })
	for _, c := range chains {
		rules = append(rules, nft.NewRule(nft.InSet{Key: f.key(false), Set: f.endpointChains.chainSets[c].Name}, nft.Goto(c.name())))
	}
	return rules
}
