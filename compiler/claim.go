package compiler

import (
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// rank orders the claims for one frontend. The API server gives out ClusterIPs, a controller sets load balancer IPs,
// and the author of a Service writes external IPs. An external IP must not take over an address of the other two
// (CVE-2020-8554).
//
// Unlike in kube-proxy, it does not do so either while the owner has no endpoints. Otherwise an author would only have
// to wait for a rollout or a crash of the Service that holds the address, to get the data of its clients. Refusing
// these clients is safe.
type rank uint8

const (
	rankClusterIP rank = iota
	rankLoadBalancer
	rankExternalIP
	rankNodePort
)

// claim is the demand of a Service port for a frontend, with the plan for it.
type claim struct {
	rank rank
	port *model.ServicePort
	plan *plan
}

// before reports whether c wins over other: by rank, then a port with endpoints over one without, as in kube-proxy,
// then by name. Age does not matter, so all nodes decide alike.
func (c *claim) before(other *claim) bool {
	if c.rank != other.rank {
		return c.rank < other.rank
	}
	if c.plan.serves() != other.plan.serves() {
		return c.plan.serves()
	}
	return c.port.ID.Compare(other.port.ID) < 0
}

// addClaims makes a port claim its frontends.
func (f *family) addClaims(p *model.ServicePort) {
	plans := plansOf(p)
	eachFrontend(p, func(r rank, fe frontend) { f.addClaim(fe, claim{r, p, plans.of(r)}) })
}

// addClaim adds a claim and touches the frontend. Of two claims of one port the first counts.
func (f *family) addClaim(fe frontend, c claim) {
	s := f.frontends[fe]
	if s == nil {
		s = &frontendState{frontend: fe, applied: &noPlan}
		s.claims = s.first[:0]
		f.frontends[fe] = s
	}
	if slices.ContainsFunc(s.claims, func(have claim) bool { return have.port.ID == c.port.ID }) {
		return
	}
	at, _ := slices.BinarySearchFunc(s.claims, c, func(have, c claim) int {
		if have.before(&c) {
			return -1
		}
		return 1
	})
	s.claims = slices.Insert(s.claims, at, c)
	f.touch(s)
}

// removeClaims removes the claims of a port.
func (f *family) removeClaims(p *model.ServicePort) {
	eachFrontend(p, func(_ rank, fe frontend) { f.removeClaim(fe, p.ID) })
}

// removeClaim removes the claim of a port and touches the frontend. A frontend without claims is deleted when it is
// reconciled.
func (f *family) removeClaim(fe frontend, id model.PortID) {
	s := f.frontends[fe]
	s.claims = slices.DeleteFunc(s.claims, func(c claim) bool { return c.port.ID == id })
	f.touch(s)
}

// touch notes that a frontend is to be reconciled.
func (f *family) touch(s *frontendState) {
	if !s.touched {
		s.touched = true
		f.touched = append(f.touched, s)
	}
}
