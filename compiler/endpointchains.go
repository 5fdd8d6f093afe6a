package compiler

import (
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// A new number of endpoints needs a new chain, with a rule that looks up the map of all endpoints. The kernel then
// walks that map to its end: with 88,000 endpoints that took three times as long as all other parts of the change. So
// where many frontends use a kind of chain, the chains for small numbers exist in advance, and others stay.

const (
	// spareChainsFrom is how many frontends of a kind give it chains in advance. With fewer, walking their endpoints is
	// cheap, also for all chains that are added at that point. The chains stay down to spareChainsUntil frontends, so
	// that a Service that comes and goes does not add and remove them each time.
	spareChainsFrom, spareChainsUntil = 100, 50
	// spareChains is the largest number of endpoints for which chains exist in advance. It is small: for each element
	// that is added to a map, the kernel walks the rules that look it up. With 32, a first Sync of 250,000 endpoints took
	// 240 ms longer.
	spareChains = 8
	// keptChains is how many chains of a kind stay that no frontend goes to any more, because it may have one again: a
	// Service that scales up and down has the kernel walk the map once for each number of endpoints.
	keptChains = 32
)

// chainLimits are the constants of these names, chainSets maxChainSets; tests change them.
type chainLimits struct {
	chainSetFrom, chainSetUntil, chainSets, spareChainsFrom, spareChainsUntil, spareChains, keptChains, spareSetsFrom, spareSetsUntil int
}

// endpointChains counts the frontends that use endpoint chains.
type endpointChains struct {
	used map[endpointChain]*chainUse
	// groups counts the frontends of chains that differ in nothing but the number of endpoints.
	groups map[endpointChain]*chainGroup
	// sets holds the sets of the chains that have one.
	sets map[endpointChain]*nft.Set
	// spareSets says that all chains that exist in advance have one, if they may.
	spareSets bool
}

// chainUse counts the frontends of one chain.
type chainUse struct {
	frontends int
	// name is the chain's name, which all elements share.
	name string
	// keys are those of the frontends, while a chain that may have a set has none.
	keys map[nft.Data]struct{}
}

// chainGroup counts the frontends of chains that differ in nothing but the number of endpoints.
type chainGroup struct {
	frontends int
	// spare is the largest number of endpoints for which chains exist in advance. If it is not 0, others stay.
	spare int
	// kept are the numbers of endpoints of the chains that stay, the one that has stayed longest first.
	kept []int
}

func newEndpointChains() endpointChains {
	return endpointChains{used: map[endpointChain]*chainUse{}, groups: map[endpointChain]*chainGroup{}, sets: map[endpointChain]*nft.Set{}}
}

// frontends returns how many frontends go to the chain.
func (e *endpointChains) frontends(c endpointChain) int {
	if use := e.used[c]; use != nil {
		return use.frontends
	}
	return 0
}

// group identifies the chains that differ in nothing but the number of endpoints.
func (c endpointChain) group() endpointChain {
	c.count = 0
	return c
}

// wants reports whether the chain should exist.
func (e *endpointChains) wants(c endpointChain) bool {
	group := e.groups[c.group()]
	return e.used[c] != nil || e.spare(c) || group != nil && slices.Contains(group.kept, c.count)
}

// spare reports whether the chain should exist even if no frontend goes to it.
func (e *endpointChains) spare(c endpointChain) bool {
	group := e.groups[c.group()]
	return group != nil && c.count > 0 && c.count <= group.spare
}

// countFrontend adds by, 1 or -1, to the number of frontends that go to the chain. It adds the chains that are then
// wanted, and removes those that are not.
func (f *family) countFrontend(c endpointChain, by int) {
	if c.kind == kindNone {
		return
	}
	e := &f.endpointChains
	use := e.used[c]
	if use == nil {
		use = &chainUse{name: c.name()}
		if c.mayHaveSet() && e.sets[c] == nil {
			use.keys = map[nft.Data]struct{}{}
		}
		e.used[c] = use
	}
	use.frontends += by
	f.countInGroup(c, by)
	switch use.frontends {
	case 0:
		delete(e.used, c)
		f.keepChain(c)
		f.putEndpointChain(c)
	case 1:
		e.groups[c.group()].unkeep(c.count)
		f.putEndpointChain(c)
	}
	f.updateChainSet(c)
}

// keepChain lets a chain stay that no frontend goes to any more, if its group is large. The one that has stayed longest
// goes for it.
func (f *family) keepChain(c endpointChain) {
	group := f.endpointChains.groups[c.group()]
	if group == nil || group.spare == 0 || c.count <= group.spare {
		return
	}
	group.kept = append(group.kept, c.count)
	if len(group.kept) > f.limits.keptChains {
		c.count = group.kept[0]
		group.kept = group.kept[1:]
		f.putEndpointChain(c)
	}
}

// unkeep notes that a frontend goes to the group's chain with that number of endpoints.
func (g *chainGroup) unkeep(count int) {
	g.kept = slices.DeleteFunc(g.kept, func(kept int) bool { return kept == count })
}

// countInGroup counts the frontends of the chain's group, and adds or removes its chains for small numbers of endpoints
// at the limits.
func (f *family) countInGroup(c endpointChain, by int) {
	e := &f.endpointChains
	key := c.group()
	group := e.groups[key]
	if group == nil {
		group = &chainGroup{}
		e.groups[key] = group
	}
	group.frontends += by
	if spare := group.frontends >= f.limits.spareChainsFrom || group.spare > 0 && group.frontends >= f.limits.spareChainsUntil; spare != (group.spare > 0) {
		f.setSpare(key, group, spare)
	}
	if group.frontends == 0 {
		delete(e.groups, key)
	}
}

// setSpare adds or removes the chains of a group that no frontend goes to.
func (f *family) setSpare(key endpointChain, group *chainGroup, spare bool) {
	if group.spare = 0; spare {
		group.spare = f.limits.spareChains
	}
	kept := group.kept
	group.kept = nil
	for _, key.count = range kept {
		f.putEndpointChain(key)
	}
	for key.count = 1; key.count <= f.limits.spareChains; key.count++ {
		f.putEndpointChain(key)
		f.updateChainSet(key)
	}
}

// putEndpointChain adds a chain that is wanted, and removes one that is not.
func (f *family) putEndpointChain(c endpointChain) {
	switch has, want := f.draft.HasChain(c.name()), f.endpointChains.wants(c); {
	case want && !has:
		f.draft.PutChain(f.endpointChain(c))
	case has && !want:
		f.draft.RemoveChain(c.name())
	}
}

// refreshEndpointChains rewrites all endpoint chains.
func (f *family) refreshEndpointChains() {
	e := &f.endpointChains
	for c := range e.used {
		f.draft.PutChain(f.endpointChain(c))
	}
	for key, group := range e.groups {
		for key.count = 1; key.count <= group.spare; key.count++ {
			f.draft.PutChain(f.endpointChain(key))
		}
		for _, key.count = range group.kept {
			f.draft.PutChain(f.endpointChain(key))
		}
	}
}
