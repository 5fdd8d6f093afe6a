package compiler

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// family compiles one IP family.
type family struct {
	family nft.Family
	config *Config
	draft  *nft.Draft
	sets   sets

	node         model.Node
	serviceCIDRs []netip.Prefix

	ports map[model.PortID]*model.ServicePort
	// frontends holds the frontends with claims.
	frontends map[frontend]*frontendState
	// touched holds the frontends to reconcile, each once.
	touched []*frontendState
	// contested holds, for each frontend with several claimants, those that Apply returned last, sorted.
	contested map[frontend][]model.PortID

	endpointChains endpointChains
	limits         chainLimits
	// clusterIPs and hairpins count the ports that use an address.
	clusterIPs, hairpins map[netip.Addr]int
	affinity             affinityState
	// uses is that of the chains in the draft.
	uses uses
}

func newFamily(ip nft.Family, config *Config) *family {
	f := &family{
		family: ip, config: config,
		draft:          nft.NewDraft(ip, TableNameFor(config.ServiceProxyName), "rules for Kubernetes Services, written by nftproxy"),
		ports:          map[model.PortID]*model.ServicePort{},
		frontends:      map[frontend]*frontendState{},
		contested:      map[frontend][]model.PortID{},
		endpointChains: newEndpointChains(),
		limits:         chainLimits{chainSetFrom, chainSetUntil, maxChainSets, spareChainsFrom, spareChainsUntil, spareChains, keptChains, spareSetsFrom, spareSetsUntil},
		clusterIPs:     map[netip.Addr]int{},
		hairpins:       map[netip.Addr]int{},
		affinity:       newAffinityState(),
	}
	if config.OwnTables {
		f.draft.Own()
	}
	f.addSets()
	f.putFixedChains()
	return f
}

// setPort replaces the port with that ID by p, nil if it is gone, and touches the frontends of both.
func (f *family) setPort(id model.PortID, p *model.ServicePort) {
	old := f.ports[id]
	if old != nil {
		f.removeClaims(old)
	}
	if p != nil {
		f.ports[id] = p
		f.addClaims(p)
		f.countAddresses(p, +1)
	} else {
		delete(f.ports, id)
	}
	if old != nil {
		f.countAddresses(old, -1)
	}
}

// reconcileTouched reconciles the touched frontends with put and returns the conflicts over them that are new.
func (f *family) reconcileTouched(put func(frontendElements)) (conflicts []Conflict) {
	for _, s := range f.touched {
		s.touched = false
		f.reconcile(s, put)
		conflicts = append(conflicts, f.newConflict(s)...)
		if len(s.claims) == 0 {
			delete(f.frontends, s.frontend)
		}
	}
	f.touched = nil
	return conflicts
}

// reconcile has put update the elements of a frontend in the draft to the plan of its owner.
func (f *family) reconcile(s *frontendState, put func(frontendElements)) {
	have, want := s.applied, f.wantedPlan(s)
	if have == want {
		return
	}
	s.applied = want
	put(frontendElements{frontend: s.frontend, key: s.frontend.key(), have: have, want: want})
}

// putElements updates all elements of a frontend.
func (f *family) putElements(e frontendElements) {
	f.putLists(e)
	f.putDecisions(e)
}

// putDecisions updates all elements of a frontend but its lists of endpoints.
func (f *family) putDecisions(e frontendElements) {
	f.putVerdicts(e)
	f.putSources(e)
	f.putAffinity(e)
	f.putCounted(e)
}

// applied returns the plan of a frontend in the draft.
func (f *family) applied(fe frontend) *plan {
	if s := f.frontends[fe]; s != nil {
		return s.applied
	}
	return &noPlan
}

// wantedPlan returns the plan of the frontend's owner.
func (f *family) wantedPlan(s *frontendState) *plan {
	if len(s.claims) == 0 {
		return &noPlan
	}
	want := s.claims[0].plan
	if len(want.sources) == 0 {
		return want
	}
	guarded := *want
	guarded.sources = f.sourcesFor(s.frontend, want.sources)
	return &guarded
}

// refresh puts all chains again and reconciles the guarded frontends, after the node or the ServiceCIDRs changed.
func (f *family) refresh() {
	f.putFixedChains()
	f.refreshAffinity()
	f.refreshEndpointChains()
	for _, s := range f.frontends {
		if len(s.applied.sources) > 0 {
			f.reconcile(s, f.putElements)
		}
	}
}
