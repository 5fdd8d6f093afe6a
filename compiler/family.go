package compiler

import (
	"cmp"
	"slices"
	"sync"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// family compiles one IP family: Service ports claim frontends, the first claim is the plan of a frontend, and the plan
// says which elements the draft has for it.
type family struct {
	program *program
	draft   *nft.Draft
	sets    *sets
	ports   map[model.PortID]*portPlans
	claims  claims
	front   front
	chains  *endpointChains
	// clientMaps are the maps of session affinity. addresses also writes the endpoints.
	clientMaps *clientMaps
	addresses  sharedAddresses
	outside    outside
	// keys has the keys of frontends.
	keys byteBlock
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
	f.chains = newEndpointChains(draft, f.program, f.sets.get(serviceElement, false))
	f.clientMaps = newClientMaps(draft, f.program)
	f.addresses = newSharedAddresses(draft, f.sets)
	f.program.uses = f.usesNow()
	f.putFixedChains()
	return f
}

// portChange is a Service port before and after a change; nil where it is not there.
type portChange struct{ have, want *model.ServicePort }

// apply brings the draft in line with changes of Service ports, and returns the new conflicts. It writes addresses and
// endpoints aside.
func (f *family) apply(changes *model.Changes) []Conflict {
	changed, isNew := f.portChanges(changes), f.isNew()
	if isNew {
		f.grow(changed)
	}
	aside, wait := asideIf(isNew)
	aside(func() {
		for _, c := range changed {
			f.addresses.replace(c.have, c.want)
		}
	})
	for _, c := range changed {
		f.setPort(c)
	}
	touched := f.claims.touched
	aside(func() {
		for _, s := range touched {
			f.writeEndpoints(s)
		}
	})
	f.count(touched)
	for _, s := range touched {
		f.writeDecisions(s)
	}
	wait()
	conflicts := f.claims.settled()
	f.putExceptions(touched)
	f.serveFront(touched)
	frontChanged := f.front.Settle()
	if now := f.usesNow(); now != f.program.uses || frontChanged {
		f.program.uses = now
		f.putFixedChains()
	}
	return conflicts
}

// portChanges returns the changes of Service ports of the family.
func (f *family) portChanges(changes *model.Changes) []portChange {
	changed := make([]portChange, 0, len(changes.Ports))
	if changes.Full {
		for id, p := range f.ports {
			if changes.Ports[id] == nil {
				changed = append(changed, portChange{have: p.ServicePort})
			}
		}
	}
	for id, p := range changes.Ports {
		if nftFamily(id.Family) != f.program.family {
			continue
		}
		c := portChange{want: p}
		if have := f.ports[id]; have != nil {
			c.have = have.ServicePort
		}
		if c.want != nil || c.have != nil && !changes.Full {
			changed = append(changed, c)
		}
	}
	return changed
}

// isNew reports whether the family has compiled nothing yet, so that nobody reads its draft and all sets are empty.
func (f *family) isNew() bool {
	return len(f.ports) == 0 && len(f.claims.frontends) == 0 && !f.draft.HasCommitted()
}

// grow gives all maps of a new family their size at once. To grow them took a third of the time of a first Apply.
func (f *family) grow(changed []portChange) {
	endpoints := 0
	for _, c := range changed {
		if c.want != nil {
			endpoints += len(c.want.Cluster)
		}
	}
	f.ports = make(map[model.PortID]*portPlans, len(changed))
	f.claims = newClaims(len(changed))
	f.sets.get(clusterIPElement, false).Grow(len(changed))
	f.sets.get(endpointElement, false).Grow(endpoints)
}

// asideIf returns a function that runs others, one after the other, and a function that waits for their end. If the
// family is new, they run in the background, beside what else writes to the draft: a start of the proxy waits for the
// first Apply, and they are up to half of its work. Later a draft notes each change, and cannot do two things at once.
func asideIf(isNew bool) (run func(func()), wait func()) {
	if !isNew {
		return func(do func()) { do() }, func() {}
	}
	var group sync.WaitGroup
	queue := make(chan func(), 2)
	group.Go(func() {
		for do := range queue {
			do()
		}
	})
	return func(do func()) { queue <- do }, func() { close(queue); group.Wait() }
}

// setPort replaces the plans of a Service port, its claims, and its maps and chains of session affinity.
func (f *family) setPort(c portChange) {
	id := cmp.Or(c.want, c.have).ID
	have, want := f.ports[id], (*portPlans)(nil)
	if c.want != nil {
		want = plansOf(c.want)
		f.ports[id] = want
	} else {
		delete(f.ports, id)
	}
	f.front.Ask(id, c.want)
	f.claims.replace(have, want)
	if have.isSticky() || want.isSticky() {
		f.clientMaps.replace(have, want)
	}
}

// count counts the touched frontends by their new plans, before these are written.
func (f *family) count(touched []*frontendState) {
	for _, s := range touched {
		have, want := s.applied, s.plan()
		had, hadShortCircuit := have.chains(f.program.config)
		has, hasShortCircuit := want.chains(f.program.config)
		f.chains.move(had, has)
		f.chains.move(hadShortCircuit, hasShortCircuit)
		f.clientMaps.move(s.frontend, have, want)
		f.moveOutside(s.frontend, have, want)
	}
	frontends := 0
	for _, n := range slices.Concat(f.clientMaps.frontends[0][:], f.clientMaps.frontends[1][:]) {
		frontends += n
	}
	f.chains.settle(frontends)
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
		f.countOutside()
	}
	f.putFixedChains()
	f.chains.refresh()
	for _, p := range f.ports {
		if p.isSticky() {
			f.clientMaps.replace(p, p)
		}
	}
	for _, s := range f.claims.frontends {
		f.writeSources(s)
	}
}

func (f *family) usesNow() uses {
	u := uses{chainSets: f.chains.setChanges}
	unknown := len(f.program.serviceRanges()) == 0
	u.servedOutside, u.checkedOutside = unknown || f.outside.served > 0, unknown || f.outside.checked > 0
	for kind := range u.has {
		for i, set := range f.sets[kind] {
			u.has[kind][i] = set != nil && set.Len() > 0
		}
	}
	u.has[serviceElement][0] = false // all tables look up service-ips
	for i, byProtocol := range f.clientMaps.frontends {
		for j, n := range byProtocol {
			u.sticky[i][j] = n > 0
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
