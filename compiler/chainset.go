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

// Each set costs a new connection one more lookup, so a chain gets one only when many frontends go to it. It keeps the
// set until they are far fewer: a Service that comes and goes must not move the frontends of all others each time. So
// which chains have a set depends on what was there before, and a process that starts may move some frontends once.
const (
	// chainSetFrom is how many frontends give an endpoint chain a set of its own.
	chainSetFrom = 1000
	// chainSetUntil is how many frontends a chain with a set must keep to have it.
	chainSetUntil = 500
)

// mayHaveSet reports whether the chain may have a set: few chains may, since packets go through the sets one by one.
func (c endpointChain) mayHaveSet() bool {
	return c.kind == kindCluster && !c.nodePort && c.count > 0 && c.count <= spareChains
}

// putGotoElement puts the element that leads a frontend to a chain that is in use into the chain's set or, if it has
// none, into verdicts.
func (f *family) putGotoElement(c endpointChain, verdicts *nft.Set, key nft.Data, comment string) {
	use := f.endpointChains.used[c]
	if use.set != nil {
		f.draft.Put(use.set, nft.Element{Key: key, Comment: comment})
		return
	}
	f.draft.Put(verdicts, nft.Element{Key: key, Verdict: nft.Goto(use.name), Comment: comment})
	if c.mayHaveSet() {
		use.keys[key] = struct{}{}
	}
}

// removeGotoElement is the inverse of putGotoElement. A chain that is not in use leads nobody.
func (f *family) removeGotoElement(c endpointChain, verdicts *nft.Set, key nft.Data) {
	use := f.endpointChains.used[c]
	if use == nil {
		return
	}
	if use.set != nil {
		f.draft.Remove(use.set, key)
		return
	}
	f.draft.Remove(verdicts, key)
	delete(use.keys, key)
}

// updateChainSet gives the chain a set or takes it away, if the number of its frontends says so, and moves them: at most
// chainSetFrom, and not again before as many came or went as the two limits are apart.
func (f *family) updateChainSet(c endpointChain) {
	use := f.endpointChains.used[c]
	switch {
	case use.set == nil && use.frontends >= f.limits.chainSetFrom && c.mayHaveSet():
		f.addChainSet(c, use)
	case use.set != nil && use.frontends < f.limits.chainSetUntil:
		f.removeChainSet(c, use)
	}
}

func (f *family) addChainSet(c endpointChain, use *chainUse) {
	use.set = f.chainSet("service-ips-" + use.name)
	f.draft.PutSet(use.set)
	keys := use.keys
	use.keys = nil
	for key := range keys {
		e, _ := f.sets.serviceIPs.Element(key)
		f.draft.Remove(f.sets.serviceIPs, key)
		f.putGotoElement(c, f.sets.serviceIPs, key, e.Comment)
	}
	f.putServices()
}

func (f *family) removeChainSet(c endpointChain, use *chainUse) {
	set := use.set
	use.set, use.keys = nil, map[nft.Data]struct{}{}
	for _, e := range set.Elements() {
		f.draft.Remove(set, e.Key)
		f.putGotoElement(c, f.sets.serviceIPs, e.Key, e.Comment)
	}
	f.draft.RemoveSet(set.Name)
	f.putServices()
}

// chainSet returns the set of that name. There is one object for each name, since a draft knows sets by their pointers.
func (f *family) chainSet(name string) *nft.Set {
	if f.chainSets[name] == nil {
		f.chainSets[name] = &nft.Set{Name: name, Key: f.key(false)}
	}
	return f.chainSets[name]
}

// chainSetRules lead from the sets to their chains.
func (f *family) chainSetRules() (rules []nft.Rule) {
	var chains []endpointChain
	for c, use := range f.endpointChains.used {
		if use.set != nil {
			chains = append(chains, c)
		}
	}
	slices.SortFunc(chains, func(a, b endpointChain) int {
		return cmp.Or(cmp.Compare(a.count, b.count), cmp.Compare(a.name(), b.name()))
	})
	for _, c := range chains {
		use := f.endpointChains.used[c]
		rules = append(rules, nft.NewRule(nft.InSet{Key: f.key(false), Set: use.set.Name}, nft.Goto(use.name)))
	}
	return rules
}
