package compiler

import (
	"cmp"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// When an element with a jump or goto is committed, the kernel validates the table: for each hook it walks all elements
// of the verdict maps that the hook's chains look up. With 44,000 frontends in service-ips that was all but 0.02 of the
// 4 ms that one more Service took. Elements of plain sets have no such price. So where many frontends go to one
// endpoint chain, they are in a set of that chain, for example service-ips-cluster-2, and a rule leads from the set to
// the chain.

// Each set costs a new connection one more lookup. So a chain gets a set only when many frontends go to it, or when
// other verdict maps have many elements: each frontend with session affinity has a chain for known clients, and the
// kernel walks all of these whenever a frontend changes that is in no set.
//
// A chain keeps its set until the frontends are far fewer. Otherwise a Service that comes and goes could move the
// frontends of all others each time. So the sets depend on earlier states, and a process that starts may move some
// frontends once.
const (
	// chainSetFrom is how many frontends give an endpoint chain a set of its own. The chain keeps it down to
	// chainSetUntil.
	chainSetFrom, chainSetUntil = 1000, 500
	// spareSetsFrom is how many frontends with session affinity give a set to all chains in advance. They keep it down to
	// spareSetsUntil.
	spareSetsFrom, spareSetsUntil = 500, 250
)

// mayHaveSet reports whether the chain may have a set. Few chains may, because packets look up the sets one by one.
func (c endpointChain) mayHaveSet() bool {
	return c.kind == kindCluster && !c.nodePort && c.count > 0 && c.count <= spareChains
}

// putGotoElement puts the element that leads a frontend to a chain that is in use into the chain's set or, if it has
// none, into verdicts.
func (f *family) putGotoElement(c endpointChain, verdicts *nft.Set, key nft.Data, comment string) {
	e := &f.endpointChains
	if set := e.sets[c]; set != nil {
		f.draft.Put(set, nft.Element{Key: key, Comment: comment})
		return
	}
	use := e.used[c]
	f.draft.Put(verdicts, nft.Element{Key: key, Verdict: nft.Goto(use.name), Comment: comment})
	if use.keys != nil {
		use.keys[key] = struct{}{}
	}
}

// removeGotoElement is the inverse of putGotoElement. If the chain is not in use, there is nothing to remove.
func (f *family) removeGotoElement(c endpointChain, verdicts *nft.Set, key nft.Data) {
	e := &f.endpointChains
	if set := e.sets[c]; set != nil {
		f.draft.Remove(set, key)
	} else if use := e.used[c]; use != nil {
		f.draft.Remove(verdicts, key)
		delete(use.keys, key)
	}
}

// updateChainSet adds or removes the chain's set, depending on the number of its frontends, and moves them. It moves at
// most chainSetFrom at a time, and the next time after at least chainSetFrom - chainSetUntil came or went.
func (f *family) updateChainSet(c endpointChain) {
	switch has, want := f.endpointChains.sets[c] != nil, f.wantsSet(c); {
	case want && !has:
		f.addChainSet(c)
	case has && !want:
		f.removeChainSet(c)
	}
}

func (f *family) wantsSet(c endpointChain) bool {
	e := &f.endpointChains
	if !c.mayHaveSet() {
		return false
	}
	if e.spareSets && e.spare(c) {
		return true
	}
	use := e.used[c]
	return use != nil && (use.frontends >= f.limits.chainSetFrom || e.sets[c] != nil && use.frontends >= f.limits.chainSetUntil)
}

func (f *family) addChainSet(c endpointChain) {
	e := &f.endpointChains
	e.sets[c] = f.chainSet("service-ips-" + c.name())
	f.draft.PutSet(e.sets[c])
	if use := e.used[c]; use != nil {
		for key := range use.keys {
			element, _ := f.sets.addresses.services.Element(key)
			f.draft.Remove(f.sets.addresses.services, key)
			f.putGotoElement(c, f.sets.addresses.services, key, element.Comment)
		}
		use.keys = nil
	}
	f.putServices()
}

func (f *family) removeChainSet(c endpointChain) {
	e := &f.endpointChains
	set := e.sets[c]
	delete(e.sets, c)
	if use := e.used[c]; use != nil {
		use.keys = map[nft.Data]struct{}{}
	}
	for _, element := range set.Elements() {
		f.draft.Remove(set, element.Key)
		f.putGotoElement(c, f.sets.addresses.services, element.Key, element.Comment)
	}
	f.draft.RemoveSet(set.Name)
	f.putServices()
}

// updateSpareSets gives all chains in advance a set or takes it away, if the number of frontends with session affinity
// says so.
func (f *family) updateSpareSets() {
	e := &f.endpointChains
	known := f.sets.addresses.known.Len() + f.sets.nodePorts.known.Len()
	spare := known >= f.limits.spareSetsFrom || e.spareSets && known >= f.limits.spareSetsUntil
	if spare == e.spareSets {
		return
	}
	e.spareSets = spare
	for key := range e.groups {
		for key.count = 1; key.count <= spareChains; key.count++ {
			f.updateChainSet(key)
		}
	}
}

// chainSet returns the set of that name. There is one object for each name, because a draft knows sets by their
// pointers.
func (f *family) chainSet(name string) *nft.Set {
	if f.chainSets[name] == nil {
		f.chainSets[name] = &nft.Set{Name: name, Key: f.key(false)}
	}
	return f.chainSets[name]
}

// chainSetRules returns the rules that lead from the sets to their chains.
func (f *family) chainSetRules() (rules []nft.Rule) {
	var chains []endpointChain
	for c := range f.endpointChains.sets {
		chains = append(chains, c)
	}
	slices.SortFunc(chains, func(a, b endpointChain) int {
		return cmp.Or(cmp.Compare(a.count, b.count), cmp.Compare(a.name(), b.name()))
	})
	for _, c := range chains {
		rules = append(rules, nft.NewRule(nft.InSet{Key: f.key(false), Set: f.endpointChains.sets[c].Name}, nft.Goto(c.name())))
	}
	return rules
}
