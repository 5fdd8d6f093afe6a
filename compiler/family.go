package compiler

import (
	"maps"
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
	ports   map[model.PortID]*portPlans
	claims  claims
	front   front
	// lists has the addresses and the lists of endpoints, decisions all other records.
	lists, decisions store
	chains           *endpointChains
	affinity         *affinityState
	// fixed holds the names of the chains with fixed names in the draft.
	fixed []string
}

func newFamily(ip nft.Family, config *Config) *family {
	draft := nft.NewDraft(ip, TableNameFor(config.ServiceProxyName), "rules for Kubernetes Services, written by nftproxy")
	if config.OwnTables {
		draft.Own()
	}
	f := &family{program: &program{family: ip, config: config}, draft: draft, ports: map[model.PortID]*portPlans{}, claims: newClaims(0)}
	f.sets = addSets(draft, f.program)
	f.front = newFront(draft, config)
	f.program.front = f.front
	f.chains = newEndpointChains(draft, f.program, f.sets.of(serviceRecord, false))
	f.affinity = newAffinityState(draft, f.program)
	f.lists = store{draft: draft, sets: f.sets, more: map[nft.Data]int{}, contested: map[nft.Data]map[string]int{}}
	f.decisions = store{draft: draft, sets: f.sets, chains: f.chains, affinity: f.affinity}
	f.putFixedChains()
	return f
}

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
		f.count()
		conflicts = f.claims.reconcileTouched(f.reconcile)
	}
	f.putExceptions()
	frontChanged := f.front.Settle()
	if now := f.usesNow(); now != f.program.uses || frontChanged {
		f.program.uses = now
		f.putFixedChains()
	}
	return conflicts
}

// setPort replaces the port with that ID by p, nil if it is gone, and touches the frontends of both.
func (f *family) setPort(id model.PortID, p *model.ServicePort) {
	lists, decisions := &f.lists, &f.decisions
	f.front.Ask(id, p)
	old := f.ports[id]
	if old != nil {
		f.claims.removePort(old)
		delete(f.ports, id)
		lists.have, decisions.have = appendPortRecords(lists.have, old.ServicePort, f.program.config), appendAffinityRecords(decisions.have, old)
	}
	if p != nil {
		f.addPort(p)
		lists.want = appendPortRecords(lists.want, p, f.program.config)
	}
	lists.replace()
	decisions.replace()
}

// addPort adds a port, except for its records in lists and decisions.replace.
func (f *family) addPort(p *model.ServicePort) {
	plans := plansOf(p)
	f.ports[p.ID] = plans
	f.claims.addPort(plans)
	f.decisions.want = appendAffinityRecords(f.decisions.want, plans)
}

// count counts the touched frontends by their new plans, before these are written.
func (f *family) count() {
	for _, s := range f.claims.touched {
		want := s.plan()
		had, hadShortCircuit := s.applied.chains(s.frontend, f.program.config)
		has, hasShortCircuit := want.chains(s.frontend, f.program.config)
		f.chains.move(had, has)
		f.chains.move(hadShortCircuit, hasShortCircuit)
		f.affinity.move(s.frontend, s.applied, want)
	}
	frontends := 0
	for _, n := range f.affinity.frontends {
		frontends += n
	}
	f.chains.settle(frontends)
}

func (f *family) reconcile(s *frontendState) {
	want := f.planOf(s)
	f.lists.replaceLists(s.frontend, s.applied, want)
	f.decisions.replaceDecisions(s.frontend, s.applied, want, f.program.config)
	s.applied = want
	f.serveFront(s)
}

// planOf returns the plan of the frontend's owner, with the sources that may dial it on this node.
func (f *family) planOf(s *frontendState) plan {
	want := s.plan()
	if len(want.sources) > 0 {
		want.sources = f.program.sourcesFor(s.frontend, want.sources)
	}
	return want
}

// putExceptions brings the external addresses without affinity that have the number of a node port in line with
// store.putAffinity.
func (f *family) putExceptions() {
	maps.DeleteFunc(f.affinity.nodePorts, func(fe frontend, _ bool) bool { return f.affinity.externals[fe] == 0 })
	if len(f.affinity.nodePorts) == 0 {
		return // nearly always, and then no frontend need be looked at
	}
	for fe, s := range f.claims.frontends {
		if isException(fe, s.applied) && f.affinity.nodePorts[frontend{port: fe.port, protocol: fe.protocol}] {
			f.decisions.putAffinity(&record{kind: affinityRecord, frontend: fe, comment: s.applied.port.comment})
		}
	}
	clear(f.affinity.nodePorts)
}

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
	f.chains.refresh()
	for _, p := range f.ports {
		f.decisions.want = appendAffinityRecords(f.decisions.want, p)
		f.decisions.replace()
	}
	for _, s := range f.claims.frontends {
		if len(s.applied.sources) > 0 {
			f.reconcile(s)
		}
	}
}

func (f *family) usesNow() uses {
	u := uses{chainSets: f.chains.setChanges}
	for kind := range u.has {
		for i, set := range f.sets[kind] {
			u.has[kind][i] = set != nil && set.Len() > 0
		}
	}
	u.has[serviceRecord][0] = false // all tables look up service-ips
	for i, protocol := range protocols {
		for _, nodePort := range []bool{false, true} {
			u.affinity[index(nodePort)][i] = f.affinity.frontends[affinityRule{protocol, nodePort}] > 0
		}
	}
	return u
}

// putFixedChains puts the chains with fixed names, and removes those that are not needed any more.
func (f *family) putFixedChains() {
	before := f.fixed
	f.fixed = nil
	for _, c := range f.program.chains(f.chains.withSet()) {
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
			f.front.Ask(id, p)
		}
	}
	claimed, done := make(chan []*frontendState, 1), make(chan struct{})
	go func() {
		defer close(done)
		f.sets.of(clusterIPRecord, false).Grow(len(ports))
		f.sets.of(endpointRecord, false).Grow(endpoints)
		for _, p := range ports {
			f.lists.want = appendPortRecords(f.lists.want, p, f.program.config)
			f.lists.replace()
		}
		for _, s := range <-claimed {
			f.lists.replaceLists(s.frontend, plan{}, s.plan())
		}
	}()
	f.ports = make(map[model.PortID]*portPlans, len(ports))
	f.claims = newClaims(len(ports))
	for _, p := range ports {
		f.addPort(p)
		f.decisions.replace()
	}
	claimed <- f.claims.touched
	f.count()
	conflicts := f.claims.reconcileTouched(func(s *frontendState) {
		s.applied = f.planOf(s)
		f.decisions.replaceDecisions(s.frontend, plan{}, s.applied, f.program.config)
		f.serveFront(s)
	})
	<-done
	return conflicts
}
