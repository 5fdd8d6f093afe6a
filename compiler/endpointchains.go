package compiler

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// A chain exists while frontends go to it. Beyond that, two things depend on the past, and nothing else in the table
// does:
//
//   - Where 100 frontends use a kind of chain, those for one to eight endpoints exist in advance, and the last 32 others
//     that lost their frontends stay.
//   - A chain of ClusterIPs has its frontends in a set of its own from 1,000 frontends on, if fewer than eight others
//     have one, and where 500 frontends have affinity, if it exists in advance.
//
// Each goes when less than half of the number is left, so that a Service that comes and goes changes only itself.
//
// The reasons are in the kernel. A new chain has a rule that looks up the map of all endpoints, and the kernel walks
// that map to its end: with 88,000 endpoints that took three times as long as all other parts of the change. And when an
// element with a jump or goto is committed, the kernel walks, for each hook, all elements of the verdict maps that the
// hook's chains look up, and all chains to which they lead. With 44,000 frontends in service-ips that was all but 0.02 of
// the 4 ms that one more Service took. Elements of plain sets have no such price, so a rule leads from the set to the
// chain.

// chainLimits are the numbers of this policy; tests change them.
type chainLimits struct {
	// spareFrom is the number of frontends of a kind of chain from which its chains for 1 to spare endpoints exist in
	// advance, and up to kept others stay. spare is small: for each element that is added to a map, the kernel walks the
	// rules that look it up. With 32, a first Sync of 250,000 endpoints took 240 ms longer.
	spareFrom, spare, kept int
	// setFrom is the number of frontends that gives a chain a set, and sets the largest number of such chains. Each set
	// costs a new connection one more lookup.
	setFrom, sets int
	// spareSetsFrom is the number of frontends with affinity that gives a set to chains that exist in advance: each of
	// these frontends has a chain for known clients, which the kernel walks too.
	spareSetsFrom int
}

var defaultChainLimits = chainLimits{spareFrom: 100, spare: 8, kept: 32, setFrom: 1000, sets: 8, spareSetsFrom: 500}

// reached reports whether n reaches a limit, or has been there before and not fallen below half of it since.
func reached(limit, n int, before bool) bool { return n >= limit || before && 2*n >= limit }

// endpointChains holds the endpoint chains of the draft, and counts the frontends that go to them.
type endpointChains struct {
	draft   *nft.Draft
	program *program
	// services is the map whose elements move to the set of a chain, and back.
	services *nft.Set
	limits   chainLimits
	// chains holds those that exist.
	chains map[endpointChain]*chainState
	// groups holds the chains that differ in nothing but the number of endpoints.
	groups map[endpointChain]*chainGroup
	// spareSets says that chains that exist in advance have a set, if they may.
	spareSets bool
	// setChanges counts the sets that came and went.
	setChanges int
}

type chainState struct {
	// name is the chain's name, which all elements share.
	name      string
	frontends int
	// set is nil if the chain has none.
	set *nft.Set
}

type chainGroup struct {
	frontends int
	// spare says that chains exist in advance, and others stay.
	spare bool
	// kept are the numbers of endpoints of the chains that stay, the oldest first.
	kept []int
}

func newEndpointChains(draft *nft.Draft, program *program, services *nft.Set) *endpointChains {
	return &endpointChains{
		draft: draft, program: program, services: services, limits: defaultChainLimits,
		chains: map[endpointChain]*chainState{}, groups: map[endpointChain]*chainGroup{},
	}
}

// name returns the name of a chain.
func (e *endpointChains) name(c endpointChain) string {
	if state := e.chains[c]; state != nil {
		return state.name
	}
	return c.name()
}

// setOf returns the set with the frontends of a chain, nil if they are in services.
func (e *endpointChains) setOf(c endpointChain) *nft.Set {
	if state := e.chains[c]; state != nil {
		return state.set
	}
	return nil
}

// count adds by, 1 or -1, to the number of frontends that go to the chain.
func (e *endpointChains) count(c endpointChain, by int) {
	state := e.chains[c]
	if state == nil {
		state = e.add(c)
	}
	state.frontends += by
	group := e.groups[c.group()]
	if group == nil {
		group = &chainGroup{}
		e.groups[c.group()] = group
	}
	group.frontends += by
	if spare := reached(e.limits.spareFrom, group.frontends, group.spare); spare != group.spare {
		group.spare = spare
		e.updateGroup(c.group(), group)
	}
	switch {
	case state.frontends == 0:
		e.keep(c, group)
	case state.frontends == by: // the first
		group.kept = slices.DeleteFunc(group.kept, func(count int) bool { return count == c.count })
	}
	e.update(c)
	if group.frontends == 0 {
		delete(e.groups, c.group())
	}
}

// keep lets a chain stay that lost its last frontend, and evicts the oldest one that stays.
func (e *endpointChains) keep(c endpointChain, group *chainGroup) {
	if !group.spare || e.isSpare(c) {
		return
	}
	group.kept = append(group.kept, c.count)
	if len(group.kept) > e.limits.kept {
		c.count = group.kept[0]
		group.kept = group.kept[1:]
		e.update(c)
	}
}

// updateGroup updates the chains that exist in advance, and those that stay.
func (e *endpointChains) updateGroup(group endpointChain, state *chainGroup) {
	kept := state.kept
	state.kept = nil
	for _, count := range kept {
		group.count = count
		e.update(group)
	}
	for group.count = 1; group.count <= e.limits.spare; group.count++ {
		e.update(group)
	}
}

// isSpare reports whether the chain exists even if no frontend goes to it.
func (e *endpointChains) isSpare(c endpointChain) bool {
	group := e.groups[c.group()]
	return group != nil && group.spare && c.count > 0 && c.count <= e.limits.spare
}

// update brings a chain and its set in line with the policy.
func (e *endpointChains) update(c endpointChain) {
	state, group := e.chains[c], e.groups[c.group()]
	wanted := state != nil && state.frontends > 0 || e.isSpare(c) || group != nil && slices.Contains(group.kept, c.count)
	switch {
	case state == nil && !wanted:
		return
	case state == nil:
		state = e.add(c)
	}
	switch wants := e.wantsSet(c, state); {
	case wants && state.set == nil:
		e.addSet(c, state)
	case !wants && state.set != nil:
		e.removeSet(state)
	}
	if !wanted {
		delete(e.chains, c)
		e.draft.RemoveChain(state.name)
	}
}

func (e *endpointChains) add(c endpointChain) *chainState {
	state := &chainState{name: c.name()}
	e.chains[c] = state
	e.draft.PutChain(e.program.endpointChain(c))
	return state
}

// refresh rewrites all chains.
func (e *endpointChains) refresh() {
	for c := range e.chains {
		e.draft.PutChain(e.program.endpointChain(c))
	}
}

// wantsSet reports whether a chain should have a set. Before the first commit there is no limit to their number, so that
// limitSets finds the largest.
func (e *endpointChains) wantsSet(c endpointChain, state *chainState) bool {
	switch {
	case !c.mayHaveSet():
		return false
	case e.spareSets && e.isSpare(c):
		return true
	case !reached(e.limits.setFrom, state.frontends, state.set != nil):
		return false
	}
	return state.set != nil || !e.draft.HasCommitted() || len(e.limited()) < e.limits.sets
}

// limited returns the chains that have a set because of their frontends, that with the most first.
func (e *endpointChains) limited() (chains []endpointChain) {
	for c, state := range e.chains {
		if state.set != nil && !(e.spareSets && e.isSpare(c)) {
			chains = append(chains, c)
		}
	}
	slices.SortFunc(chains, func(a, b endpointChain) int {
		return cmp.Or(cmp.Compare(e.chains[b].frontends, e.chains[a].frontends), a.compare(b))
	})
	return chains
}

// limitSets removes the sets of the smallest chains for which there is no place.
func (e *endpointChains) limitSets() {
	chains := e.limited()
	for _, c := range chains[min(len(chains), e.limits.sets):] {
		e.removeSet(e.chains[c])
	}
}

// addSet moves the frontends of a chain from services to a set.
func (e *endpointChains) addSet(c endpointChain, state *chainState) {
	e.setChanges++
	// The same object, if it went since the last commit: see nft.Draft.PutSet.
	if state.set, _ = e.draft.SetBefore(c.setName()); state.set == nil {
		state.set = &nft.Set{Name: c.setName(), Key: e.program.key(false)}
	}
	e.draft.PutSet(state.set)
	for _, element := range e.services.Elements() {
		if element.Verdict.Chain == state.name {
			e.draft.Remove(e.services, element.Key)
			e.draft.Put(state.set, nft.Element{Key: element.Key, Comment: element.Comment})
		}
	}
}

// removeSet moves the frontends of a chain from its set to services.
func (e *endpointChains) removeSet(state *chainState) {
	e.setChanges++
	for _, element := range state.set.Elements() {
		e.draft.Remove(state.set, element.Key)
		element.Verdict = nft.Goto(state.name)
		e.draft.Put(e.services, element)
	}
	e.draft.RemoveSet(state.set.Name)
	state.set = nil
}

// withSet returns the chains that have a set, by the number of endpoints.
func (e *endpointChains) withSet() []endpointChain {
	chains := slices.SortedFunc(maps.Keys(e.chains), endpointChain.compare)
	return slices.DeleteFunc(chains, func(c endpointChain) bool { return e.chains[c].set == nil })
}

// countAffinity updates the sets of chains that exist in advance to the number of frontends with affinity.
func (e *endpointChains) countAffinity(frontends int) {
	if spare := reached(e.limits.spareSetsFrom, frontends, e.spareSets); spare != e.spareSets {
		e.spareSets = spare
		for c := range maps.Clone(e.chains) {
			e.update(c)
		}
	}
}
