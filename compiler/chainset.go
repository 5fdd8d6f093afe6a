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

// Each set costs a new connection one more lookup. So only the chains to which most frontends go have one, whatever the
// number of their endpoints. There is a second reason for a set: each frontend with session affinity has a chain for
// known clients, and the kernel walks all of these whenever a frontend changes that is in no set.
//
// A chain keeps its set until the frontends are far fewer. Otherwise a Service that comes and goes could move the
// frontends of all others each time. So the sets depend on earlier states, and a process that starts may move some
// frontends once.
const (
	// chainSetFrom is how many frontends give an endpoint chain a set of its own. The chain keeps it down to
	// chainSetUntil.
	chainSetFrom, chainSetUntil = 1000, 500
	// maxChainSets is how many chains have a set because of their frontends. Where more chains have enough of them, one
	// with at least twice as many as the smallest takes its place.
	maxChainSets = 8
	// spareSetsFrom is how many frontends with session affinity give a set to all chains in advance. They keep it down to
	// spareSetsUntil.
	spareSetsFrom, spareSetsUntil = 500, 250
)

// chainSetPrefix comes before the chain's name in the name of its set.
const chainSetPrefix = "service-ips-"

// mayHaveSet reports whether the chain may have a set: only those of ClusterIPs, which nearly all Services have.
func (c endpointChain) mayHaveSet() bool {
	return c.kind == kindCluster && !c.nodePort && c.count > 0
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

// updateChainSet adds or removes the chain's set, depending on the number of its frontends, and moves them. It moves the
// frontends of one chain or two, and again only after at least chainSetFrom - chainSetUntil came or went.
func (f *family) updateChainSet(c endpointChain) {
	e := &f.endpointChains
	frontends := e.frontends(c)
	switch has, spare := e.sets[c] != nil, e.spareSet(c); {
	case !c.mayHaveSet():
	case !has && (spare || frontends >= f.limits.chainSetFrom && f.makePlace(frontends)):
		f.addChainSet(c)
	case has && !spare && frontends < f.limits.chainSetUntil:
		f.removeChainSet(c)
	}
}

// spareSet reports whether the chain has a set even if no frontend goes to it.
func (e *endpointChains) spareSet(c endpointChain) bool { return e.spareSets && e.spare(c) }

// makePlace reports whether a chain with so many frontends may have a set. It may remove that of a smaller chain. A
// draft without a commit has places for all, so that the first model decides which chains are the largest.
func (f *family) makePlace(frontends int) bool {
	chains := f.endpointChains.withSet()
	if len(chains) < f.limits.chainSets || !f.draft.HasCommitted() {
		return true
	}
	if 2*f.endpointChains.frontends(chains[0]) > frontends {
		return false
	}
	f.removeChainSet(chains[0])
	return true
}

// limitChainSets removes the sets of the smallest chains for which there is no place.
func (f *family) limitChainSets() {
	chains := f.endpointChains.withSet()
	for _, c := range chains[:max(len(chains)-f.limits.chainSets, 0)] {
		f.removeChainSet(c)
	}
}

// withSet returns the chains that have a set because of their frontends, that with the fewest first.
func (e *endpointChains) withSet() (chains []endpointChain) {
	for c := range e.sets {
		if !e.spareSet(c) {
			chains = append(chains, c)
		}
	}
	slices.SortFunc(chains, func(a, b endpointChain) int {
		return cmp.Or(cmp.Compare(e.frontends(a), e.frontends(b)), b.compare(a))
	})
	return chains
}

func (f *family) addChainSet(c endpointChain) {
	e := &f.endpointChains
	name := chainSetPrefix + c.name()
	set, _ := f.draft.SetBefore(name) // the same object, if it went since the last commit: see PutSet
	if set == nil {
		set = &nft.Set{Name: name, Key: f.key(false)}
	}
	e.sets[c] = set
	f.draft.PutSet(set)
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
		for key.count = 1; key.count <= f.limits.spareChains; key.count++ {
			f.updateChainSet(key)
		}
	}
}

// chainSetRules returns the rules that lead from the sets to their chains.
func (f *family) chainSetRules() (rules []nft.Rule) {
	var chains []endpointChain
	for c := range f.endpointChains.sets {
		chains = append(chains, c)
	}
	slices.SortFunc(chains, endpointChain.compare)
	for _, c := range chains {
		rules = append(rules, nft.NewRule(nft.InSet{Key: f.key(false), Set: f.endpointChains.sets[c].Name}, nft.Goto(c.name())))
	}
	return rules
}

// compare orders chains by the number of endpoints.
func (c endpointChain) compare(other endpointChain) int {
	return cmp.Or(cmp.Compare(c.count, other.count), cmp.Compare(c.name(), other.name()))
}
