package compiler

import "github.com/nftproxy/nftproxy/model"

// isNew reports whether the family has compiled nothing yet, so that nobody reads its draft and all sets are empty.
func (f *family) isNew() bool {
	return len(f.ports) == 0 && len(f.frontends) == 0 && !f.draft.HasCommitted()
}

// applyFirst compiles those Service ports of a full model that are of this family, which must be new. It returns the
// conflicts. A second goroutine puts the addresses and the lists of endpoints, which are the sets that nothing else
// looks at. That is up to half of the work, and a start waits for it.
func (f *family) applyFirst(ports map[model.PortID]*model.ServicePort) []Conflict {
	n, endpoints := f.size(ports)
	claimed, done := make(chan []*frontendState, 1), make(chan struct{})
	go func() {
		defer close(done)
		f.growSets(n, endpoints)
		for id, p := range ports {
			if nftFamily(id.Family) == f.family {
				f.countAddresses(p, +1)
			}
		}
		for _, s := range <-claimed {
			f.putLists(frontendElements{frontend: s.frontend, key: s.frontend.key(), have: &noPlan, want: s.claims[0].plan})
		}
	}()
	f.growRecords(n)
	for id, p := range ports {
		if nftFamily(id.Family) == f.family {
			f.ports[id] = p
			f.addClaims(p)
		}
	}
	claimed <- f.touched
	conflicts := f.reconcileTouched(f.putDecisions)
	<-done
	return conflicts
}
