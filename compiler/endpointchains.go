package compiler

import "github.com/nftproxy/nftproxy/nft"

// A new number of endpoints takes a new chain, and a rule in it that looks up the map of all endpoints. The kernel then
// walks that map to its end: with 88,000 endpoints that took three times as long as all else about the change. So where
// many frontends use a kind of chain, those for small numbers are there before they are needed.

const (
	// spareChainsFrom is how many frontends make a kind of chain worth having in advance. While they are few, walking
	// their endpoints is cheap, also for all chains that are added at that point.
	spareChainsFrom = 100
	// spareChains is up to how many endpoints there are chains in advance. It is small, because for each element that
	// is added to a map the kernel walks the rules that look it up: with 32, a first Sync of 250,000 endpoints took 240
	// ms longer.
	spareChains = 8
)

// endpointChains counts the frontends that use endpoint chains.
type endpointChains struct {
	used map[endpointChain]*chainUse
	// groups counts the frontends of chains that differ in nothing but the number of endpoints.
	groups map[endpointChain]int
	// chainSets holds the sets of the chains that have one.
	chainSets map[endpointChain]*nft.Set
}

// chainUse is the use of one chain.
type chainUse struct {
	frontends int
	// name is the chain's; all elements share it.
	name string
}

func newEndpointChains() endpointChains {
	return endpointChains{used: map[endpointChain]*chainUse{}, groups: map[endpointChain]int{}, chainSets: map[endpointChain]*nft.Set{}}
}

// group identifies the chains that differ in nothing but the number of endpoints; false for chains of one Service port.
func (c endpointChain) group() (group endpointChain, shared bool) {
	c.count = 0
	return c, c.affinity.port == ""
}

// wants reports whether there should be that chain. It depends on nothing but what frontends there are now, so that all
// ways to the same Services end in the same rules.
func (e *endpointChains) wants(c endpointChain) bool {
	if e.used[c] != nil {
		return true
	}
	group, shared := c.group()
	return shared && c.count > 0 && c.count <= spareChains && e.groups[group] >= spareChainsFrom
}

// useChain counts one more frontend that goes to the chain, and makes the chains that this takes.
func (f *family) useChain(c endpointChain) {
	if c.kind == "" {
		return
	}
	e := &f.endpointChains
	use := e.used[c]
	if use == nil {
		use = &chainUse{name: c.name()}
		e.used[c] = use
		f.putEndpointChain(c)
		f.useChain(c.choice(f.config.AffinityHash))
	}
	use.frontends++
	group, _ := c.group()
	if e.groups[group]++; e.groups[group] == spareChainsFrom {
		f.putGroup(group)
	}
	if use.frontends == f.chainSetFrom {
		f.updateChainSet(c)
	}
}

// releaseChain counts one frontend less, and removes the chains that nobody needs any more.
func (f *family) releaseChain(c endpointChain) {
	if c.kind == "" {
		return
	}
	e := &f.endpointChains
	group, _ := c.group()
	if e.groups[group]--; e.groups[group] == spareChainsFrom-1 {
		f.putGroup(group)
	}
	if e.groups[group] == 0 {
		delete(e.groups, group)
	}
	use := e.used[c]
	if use.frontends--; use.frontends == f.chainSetFrom-1 {
		f.updateChainSet(c)
	}
	if use.frontends == 0 {
		delete(e.used, c)
		f.putEndpointChain(c)
		f.releaseChain(c.choice(f.config.AffinityHash))
	}
}

// putGroup adds or removes the chains for small numbers of endpoints.
func (f *family) putGroup(group endpointChain) {
	for group.count = 1; group.count <= spareChains; group.count++ {
		f.putEndpointChain(group)
	}
}

// putEndpointChain adds or removes a chain, depending on whether it is wanted.
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
	for group, frontends := range e.groups {
		for group.count = 1; frontends >= spareChainsFrom && group.count <= spareChains; group.count++ {
			if e.wants(group) {
				f.draft.PutChain(f.endpointChain(group))
			}
		}
	}
}
