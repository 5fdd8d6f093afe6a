package compiler

import (
	"cmp"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// A chain exists while frontends go to it. Beyond that, two things depend on the past, and nothing else in the table
// does:
//
//   - If 100 frontends use a kind of chain, its chains for one to eight endpoints exist in advance, and the last 32
//     longer chains that lost their frontends stay.
//   - A chain of ClusterIPs has its frontends in a set of its own from 1,000 frontends on. If 500 frontends have
//     affinity, a chain that exists in advance has a set too.
//
// Each ends when less than half of the number is left, so that a Service that comes and goes changes only itself.
//
// For a new chain, the kernel walks the map of all endpoints: with 88,000, that took three times as long as the rest of
// the change. For a new element with a jump or goto, it walks, for each hook, all elements of the verdict maps that the
// hook's chains look up. With 44,000 frontends in service-ips, that was nearly all of the 4 ms of one more Service.
// Elements of plain sets have no such price, so a rule leads from the set to the chain.

// chainLimits are the numbers of this policy; tests change them.
type chainLimits struct {
	// From spareFrom frontends of a kind of chain on, chains for 1 to spare endpoints exist in advance, and kept others
	// stay. With spare 32, a first Sync of 250,000 endpoints took 240 ms longer.
	spareFrom, spare, kept int
	// setFrom is the number of frontends that gives a chain a set. spareSetsFrom is the number of frontends with
	// affinity that gives a set to chains that exist in advance: each such frontend has a chain for known clients, which the
	// kernel walks too.
	setFrom, spareSetsFrom int
}

var defaultChainLimits = chainLimits{spareFrom: 100, spare: 8, kept: 32, setFrom: 1000, spareSetsFrom: 500}

// reached reports whether n reaches a limit, or has been there before and not fallen below half of it since.
func reached(limit, n int, before bool) bool { return n >= limit || before && 2*n >= limit }

// endpointChains holds the endpoint chains of the draft. Before frontends are written, move counts the frontends
// of each chain, and settle decides about chains and sets.
type endpointChains struct {
	draft   *nft.Draft
	program *program
	// services is the map whose elements move to the set of a chain, and back.
	services *nft.Set
	limits   chainLimits
	chains   map[endpointChain]*chainState
	// groups holds the chains that differ in nothing but the number of endpoints.
	groups map[endpointChain]*chainGroup
	// spareSets says that chains that exist in advance have a set, if they may.
	spareSets bool
	// changes counts the calls of count; settled is the value of changes at the last settle. setChanges counts the sets
	// that were added and removed.
	changes, settled, setChanges int
}

type chainState struct {
	// name is the chain's name, which all elements share.
	name      string
	frontends int
	// used is endpointChains.changes when a frontend came or went last.
	used int
	// set is nil if the chain has none.
	set *nft.Set
}

type chainGroup struct {
	frontends int
	// spare says that chains exist in advance, and others stay.
	spare bool
}

func newEndpointChains(draft *nft.Draft, program *program, services *nft.Set) *endpointChains {
	return &endpointChains{
		draft: draft, program: program, services: services, limits: defaultChainLimits,
		chains: map[endpointChain]*chainState{}, groups: map[endpointChain]*chainGroup{},
	}
}

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

// move counts a frontend that goes to another chain.
func (e *endpointChains) move(have, want endpointChain) {
	if have != want {
		e.count(have, -1)
		e.count(want, +1)
	}
}

func (e *endpointChains) count(c endpointChain, by int) {
	if c.kind == kindNone {
		return
	}
	state, group := e.chains[c], e.groups[c.group()]
	if state == nil {
		state = e.add(c)
	}
	if group == nil {
		group = &chainGroup{}
		e.groups[c.group()] = group
	}
	e.changes++
	state.frontends += by
	state.used = e.changes
	group.frontends += by
}

// settle brings the chains and their sets in line with the policy, given the number of frontends with affinity.
func (e *endpointChains) settle(sticky int) {
	spareSets := reached(e.limits.spareSetsFrom, sticky, e.spareSets)
	if e.changes == e.settled && spareSets == e.spareSets {
		return
	}
	e.settled, e.spareSets = e.changes, spareSets
	for c, group := range e.groups {
		spare := reached(e.limits.spareFrom, group.frontends, group.spare)
		for c.count = 1; spare && !group.spare && c.count <= e.limits.spare; c.count++ {
			if e.chains[c] == nil {
				e.add(c)
			}
		}
		group.spare = spare
	}
	unused := map[endpointChain][]endpointChain{}
	for c, state := range e.chains {
		if state.frontends == 0 && !e.isSpare(c) {
			unused[c.group()] = append(unused[c.group()], c)
		}
		switch wants := e.wantsSet(c, state); {
		case wants && state.set == nil:
			e.addSet(c, state)
		case !wants && state.set != nil:
			e.removeSet(state)
		}
	}
	for group, chains := range unused {
		kept := 0
		if e.groups[group].spare {
			kept = e.limits.kept
		}
		slices.SortFunc(chains, func(a, b endpointChain) int { return cmp.Compare(e.chains[b].used, e.chains[a].used) })
		for _, c := range chains[min(kept, len(chains)):] {
			e.draft.RemoveChain(e.chains[c].name)
			delete(e.chains, c)
		}
	}
}

func (e *endpointChains) isSpare(c endpointChain) bool {
	return e.groups[c.group()].spare && c.count > 0 && c.count <= e.limits.spare
}

func (e *endpointChains) wantsSet(c endpointChain, state *chainState) bool {
	return c.mayHaveSet() && (e.spareSets && e.isSpare(c) || reached(e.limits.setFrom, state.frontends, state.set != nil))
}

func (e *endpointChains) add(c endpointChain) *chainState {
	state := &chainState{name: c.name()}
	e.chains[c] = state
	e.draft.PutChain(e.program.endpointChain(c))
	return state
}

func (e *endpointChains) refresh() {
	for c := range e.chains {
		e.draft.PutChain(e.program.endpointChain(c))
	}
}

func (e *endpointChains) addSet(c endpointChain, state *chainState) {
	e.setChanges++
	// The same object, if it went since the last commit: see nft.Draft.PutSet.
	if state.set, _ = e.draft.SetBefore(c.setName()); state.set == nil {
		state.set = &nft.Set{Name: c.setName(), Key: e.program.key(false)}
		state.set.Grow(state.frontends)
	}
	e.draft.PutSet(state.set)
	for _, element := range e.services.Elements() {
		if element.Verdict.Chain == state.name {
			e.draft.Remove(e.services, element.Key)
			e.draft.Put(state.set, nft.Element{Key: element.Key, Comment: element.Comment})
		}
	}
}

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
func (e *endpointChains) withSet() (chains []endpointChain) {
	for c, state := range e.chains {
		if state.set != nil {
			chains = append(chains, c)
		}
	}
	slices.SortFunc(chains, func(a, b endpointChain) int {
		return cmp.Or(cmp.Compare(a.count, b.count), cmp.Compare(a.name(), b.name()))
	})
	return chains
}
