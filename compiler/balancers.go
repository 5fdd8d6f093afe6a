package compiler

// A new number of endpoints takes a new chain, and a rule in it that looks up the map of all endpoints. The kernel then
// walks that map to its end: with 88,000 endpoints that took three times as long as all else about the change. So where many frontends
// use a kind of chain, those for small numbers are there before they are needed.

const (
	// spareChainsFrom is how many frontends make a kind of chain worth having in advance. While they are few, walking their endpoints
	// is cheap, also for all chains that are added at that point.
	spareChainsFrom = 100
	// spareChains is up to how many endpoints there are chains in advance. It is small, because for each element that is added to a map
	// the kernel walks the rules that look it up: with 32, a first Sync of 250,000 endpoints took 240 ms longer.
	spareChains = 8
)

// group identifies the balancers that differ in nothing but the number of endpoints; false for chains of one Service port.
func (b balancer) group() (g balancer, shared bool) {
	b.count = 0
	return b, b.affinity.port == ""
}

// wants reports whether there is a chain for the balancer. It depends on nothing but what frontends there are now, so that all
// ways to the same Services end in the same rules.
func (f *family) wants(b balancer) bool {
	if f.balancers[b] > 0 {
		return true
	}
	group, shared := b.group()
	return shared && b.count > 0 && b.count <= spareChains && f.balancerGroups[group] >= spareChainsFrom
}

// use counts one more frontend that goes to the balancer and makes the chains that this takes.
func (f *family) use(b balancer) {
	if b.kind == "" {
		return
	}
	if f.balancers[b]++; f.balancers[b] == 1 {
		f.putBalancer(b)
		f.use(b.choice(f.config.AffinityHash))
	}
	group, _ := b.group()
	if f.balancerGroups[group]++; f.balancerGroups[group] == spareChainsFrom {
		f.putGroup(group)
	}
}

func (f *family) release(b balancer) {
	if b.kind == "" {
		return
	}
	group, _ := b.group()
	if f.balancerGroups[group]--; f.balancerGroups[group] == spareChainsFrom-1 {
		f.putGroup(group)
	}
	if f.balancerGroups[group] == 0 {
		delete(f.balancerGroups, group)
	}
	if f.balancers[b]--; f.balancers[b] == 0 {
		delete(f.balancers, b)
		f.putBalancer(b)
		f.release(b.choice(f.config.AffinityHash))
	}
}

// putGroup brings the chains for small numbers of endpoints in line with whether they are wanted.
func (f *family) putGroup(group balancer) {
	for group.count = 1; group.count <= spareChains; group.count++ {
		f.putBalancer(group)
	}
}

// putBalancer brings the chain of a balancer in line with whether it is wanted.
func (f *family) putBalancer(b balancer) {
	switch has, want := f.draft.HasChain(b.name()), f.wants(b); {
	case want && !has:
		f.draft.PutChain(f.balancerChain(b))
	case has && !want:
		f.draft.RemoveChain(b.name())
	}
}

// refreshBalancers rewrites the chains of all balancers.
func (f *family) refreshBalancers() {
	for b := range f.balancers {
		f.draft.PutChain(f.balancerChain(b))
	}
	for group, frontends := range f.balancerGroups {
		for group.count = 1; frontends >= spareChainsFrom && group.count <= spareChains; group.count++ {
			if f.wants(group) {
				f.draft.PutChain(f.balancerChain(group))
			}
		}
	}
}
