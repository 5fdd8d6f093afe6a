package compiler

import (
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// family compiles one IP family: Service ports claim frontends, the first claim's plan says which records a frontend
// needs, and the stores bring these into the draft.
type family struct {
	program *program
	draft   *nft.Draft
	sets    *sets
	ports   map[model.PortID]*model.ServicePort
	claims  claims
	// lists has the addresses and the lists of endpoints, decisions all other records. Only the latter has chains and
	// affinity.
	lists, decisions store
	chains           *endpointChains
	affinity         *affinityState
	// uses is that of the chains with fixed names in the draft, and fixed their names.
	uses  uses
	fixed []string
}

func newFamily(ip nft.Family, config *Config) *family {
	draft := nft.NewDraft(ip, TableNameFor(config.ServiceProxyName), "rules for Kubernetes Services, written by nftproxy")
	if config.OwnTables {
		draft.Own()
	}
	f := &family{program: &program{family: ip, config: config}, draft: draft, ports: map[model.PortID]*model.ServicePort{}, claims: newClaims(0)}
	f.sets = addSets(draft, f.program)
	f.chains = newEndpointChains(draft, f.program, f.sets.of(serviceRecord, false))
	f.affinity = newAffinityState(draft, f.program)
	f.lists = store{draft: draft, sets: f.sets, more: map[moreKey]int{}}
	f.decisions = store{draft: draft, sets: f.sets, chains: f.chains, affinity: f.affinity}
	f.putFixedChains()
	return f
}

// apply replaces the Service ports of the family among those of changes, and returns the conflicts that are new.
func (f *family) apply(changes *model.Changes) []Conflict {
	var conflicts []Conflict
	if changes.Full && f.isNew() {
		conflicts = f.applyFirst(changes.Ports)
	} else {
		if changes.Full {
			for id := range f.ports {
				if changes.Ports[id] == nil {
					f.setPort(id, nil)
				}
			}
		}
		for id, port := range changes.Ports {
			if nftFamily(id.Family) == f.program.family {
				f.setPort(id, port)
			}
		}
		conflicts = f.claims.reconcileTouched(f.reconcile)
	}
	f.chains.countAffinity(f.sets.of(knownRecord, false).Len() + f.sets.of(knownRecord, true).Len())
	f.chains.limitSets()
	if now := f.usesNow(); now != f.uses {
		f.uses = now
		f.putFixedChains()
	}
	return conflicts
}

// setPort replaces the port with that ID by p, nil if it is gone, and touches the frontends of both.
func (f *family) setPort(id model.PortID, p *model.ServicePort) {
	old := f.ports[id]
	if old != nil {
		f.claims.removePort(old)
	}
	if p != nil {
		f.ports[id] = p
		f.claims.addPort(p)
	} else {
		delete(f.ports, id)
	}
	s := &f.lists
	s.have, s.want = appendPortRecords(s.have[:0], old), appendPortRecords(s.want[:0], p)
	s.replace(s.have, s.want)
}

// reconcile brings the records of a frontend to the plan of its owner.
func (f *family) reconcile(s *frontendState) {
	have, want := s.applied, f.planOf(s)
	if have != want {
		s.applied = want
		f.lists.replaceLists(s.frontend, have, want)
		f.decisions.replaceDecisions(s.frontend, have, want, f.program.config)
	}
}

// planOf returns the plan of the frontend's owner, with the sources that may dial it on this node.
func (f *family) planOf(s *frontendState) *plan {
	want := s.plan()
	if len(want.sources) == 0 {
		return want
	}
	guarded := *want
	guarded.sources = f.program.sourcesFor(s.frontend, want.sources)
	return &guarded
}

// setCluster takes the node and the ServiceCIDRs of changes, and rewrites what depends on them.
func (f *family) setCluster(changes *model.Changes) {
	if changes.Node == nil && !changes.ServiceCIDRsChanged {
		return
	}
	if changes.Node != nil {
		f.program.node = *changes.Node
	}
	if changes.ServiceCIDRsChanged {
		f.program.serviceCIDRs = changes.ServiceCIDRs
	}
	f.putFixedChains()
	f.affinity.refresh()
	f.chains.refresh()
	for _, s := range f.claims.frontends {
		if len(s.applied.sources) > 0 {
			f.reconcile(s)
		}
	}
}

// usesNow returns which sets have elements.
func (f *family) usesNow() uses {
	has := func(kind recordKind, nodePort bool) bool { return f.sets.of(kind, nodePort).Len() > 0 }
	u := uses{
		hairpin: has(hairpinRecord, false), guarded: has(guardedRecord, false),
		nodePorts: has(serviceRecord, true), noEndpoints: has(noEndpointRecord, false), noEndpointNodePorts: has(noEndpointRecord, true),
		known:     [2]bool{has(knownRecord, false), has(knownRecord, true)},
		chainSets: f.chains.setChanges,
	}
	for i, protocol := range protocols {
		for _, nodePort := range []bool{false, true} {
			u.affinity[index(nodePort)][i] = f.affinity.frontends[affinityRule{protocol, nodePort}] > 0
		}
	}
	return u
}

// putFixedChains puts the chains with fixed names and removes those that are not needed any more. The transaction does
// not contain those that are the same as before.
func (f *family) putFixedChains() {
	before := f.fixed
	f.fixed = nil
	for _, c := range f.program.chains(&f.uses, f.chains.withSet()) {
		f.fixed = append(f.fixed, c.Name)
		f.draft.PutChain(c)
	}
	for _, name := range before {
		if !slices.Contains(f.fixed, name) {
			f.draft.RemoveChain(name)
		}
	}
}

// isNew reports whether the family has compiled nothing yet, so that nobody reads its draft and all sets are empty.
func (f *family) isNew() bool {
	return len(f.ports) == 0 && len(f.claims.frontends) == 0 && !f.draft.HasCommitted()
}

// applyFirst compiles those Service ports of a full model that are of this family, which must be new. It returns the
// conflicts. A second goroutine has the store of lists: that is up to half of the work, and a start waits for it. All
// maps get their size at once, since growing them took a third of the time.
func (f *family) applyFirst(all map[model.PortID]*model.ServicePort) []Conflict {
	endpoints := 0
	var ports []*model.ServicePort
	for id, p := range all {
		if nftFamily(id.Family) == f.program.family {
			ports = append(ports, p)
			endpoints += len(p.Cluster)
		}
	}
	claimed, done := make(chan []*frontendState, 1), make(chan struct{})
	go func() {
		defer close(done)
		f.sets.of(clusterIPRecord, false).Grow(len(ports))
		f.sets.of(endpointRecord, false).Grow(endpoints)
		for _, p := range ports {
			f.lists.want = appendPortRecords(f.lists.want[:0], p)
			f.lists.replace(nil, f.lists.want)
		}
		for _, s := range <-claimed {
			f.lists.replaceLists(s.frontend, &noPlan, s.plan())
		}
	}()
	f.ports = make(map[model.PortID]*model.ServicePort, len(ports))
	f.claims = newClaims(len(ports))
	for _, p := range ports {
		f.ports[p.ID] = p
		f.claims.addPort(p)
	}
	claimed <- f.claims.touched
	conflicts := f.claims.reconcileTouched(func(s *frontendState) {
		s.applied = f.planOf(s)
		f.decisions.replaceDecisions(s.frontend, &noPlan, s.applied, f.program.config)
	})
	<-done
	return conflicts
}
