package compiler

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// rank orders the claims for one frontend. The API server gives out ClusterIPs, a controller sets load balancer IPs,
// and the author of a Service writes external IPs. An external IP must not take over an address of the other two kinds
// (CVE-2020-8554). In kube-proxy it does, while the owner has no endpoints: there an author only has to wait for a crash.
type rank uint8

const (
	rankClusterIP rank = iota
	rankLoadBalancer
	rankExternalIP
	rankNodePort
	// ranks is the number of ranks.
	ranks
)

// eachFrontend calls do with each frontend of a Service port, as EachFrontend, and its rank.
func eachFrontend(p *model.ServicePort, do func(rank, frontend)) {
	address := func(r rank, addr netip.Addr) { do(r, frontend{addr, p.Port, p.ID.Protocol}) }
	if p.ClusterIP.IsValid() {
		address(rankClusterIP, p.ClusterIP)
	}
	for _, addr := range p.LoadBalancerIPs {
		address(rankLoadBalancer, addr)
	}
	for _, addr := range p.ExternalIPs {
		address(rankExternalIP, addr)
	}
	if p.NodePort != 0 {
		do(rankNodePort, frontend{port: p.NodePort, protocol: p.ID.Protocol})
	}
}

// EachFrontend calls do with the address and port of each frontend that a Service port claims. For a node port, addr is
// the zero value. A frontend comes twice if the Service port names its address twice.
func (c *Compiler) EachFrontend(p *model.ServicePort, do func(addr netip.Addr, port uint16)) {
	eachFrontend(p, func(_ rank, fe frontend) { do(fe.addr, fe.port) })
}

// before reports whether p wins a frontend over other: by rank, then a port with endpoints over one without, as in
// kube-proxy, then by name. Age does not matter, so all nodes decide alike.
func (p *plan) before(other *plan) bool {
	if p.rank != other.rank {
		return p.rank < other.rank
	}
	if p.serves() != other.serves() {
		return p.serves()
	}
	return p.port.ID.Compare(other.port.ID) < 0
}

// claims holds the frontends that Service ports claim, and finds the owner of each.
type claims struct {
	frontends map[frontend]*frontendState
	// touched holds the frontends whose claims changed, each once.
	touched []*frontendState
	// contested holds, for each frontend with several claimants, the claimants that Apply returned last, sorted.
	contested map[frontend][]model.PortID
}

type frontendState struct {
	frontend frontend
	// claims are sorted, the owner's first.
	claims []*plan
	first  [1]*plan // the memory of the first claim
	// applied is the plan in the draft, and sources are the prefixes that may dial the frontend there; empty means everybody.
	applied *plan
	sources []netip.Prefix
	touched bool
}

// plan returns the owner's plan; nil if nobody claims the frontend.
func (s *frontendState) plan() *plan {
	if len(s.claims) == 0 {
		return nil
	}
	return s.claims[0]
}

func newClaims(ports int) claims {
	return claims{
		frontends: make(map[frontend]*frontendState, ports),
		touched:   make([]*frontendState, 0, ports),
		contested: map[frontend][]model.PortID{},
	}
}

// replace withdraws the claims of one state of a Service port, and makes the claims of another state. Either may be nil.
func (c *claims) replace(have, want *portPlans) {
	if have != nil {
		eachFrontend(have.ServicePort, func(_ rank, fe frontend) {
			s := c.frontends[fe]
			s.claims = slices.DeleteFunc(s.claims, func(claim *plan) bool { return claim.port == have })
			c.touch(s)
		})
	}
	if want != nil {
		eachFrontend(want.ServicePort, func(r rank, fe frontend) { c.add(fe, &want.plans[r]) })
	}
}

// add adds a claim. If a Service port claims a frontend twice, the first claim counts.
func (c *claims) add(fe frontend, claim *plan) {
	s := c.frontends[fe]
	if s == nil {
		s = &frontendState{frontend: fe}
		s.claims = s.first[:0]
		c.frontends[fe] = s
	}
	c.touch(s)
	if slices.ContainsFunc(s.claims, func(other *plan) bool { return other.port == claim.port }) {
		return
	}
	at, _ := slices.BinarySearchFunc(s.claims, claim, func(other, claim *plan) int {
		if other.before(claim) {
			return -1
		}
		return 1
	})
	s.claims = slices.Insert(s.claims, at, claim)
}

func (c *claims) touch(s *frontendState) {
	if !s.touched {
		s.touched = true
		c.touched = append(c.touched, s)
	}
}

// applied returns the plan of a frontend that is in the draft.
func (c *claims) applied(fe frontend) *plan {
	if s := c.frontends[fe]; s != nil {
		return s.applied
	}
	return nil
}

// settled notes that the plans of the touched frontends are in the draft, and returns the conflicts over them whose
// claimants changed.
func (c *claims) settled() (conflicts []Conflict) {
	for _, s := range c.touched {
		s.applied, s.touched = s.plan(), false
		if conflict, ok := c.newConflict(s); ok {
			conflicts = append(conflicts, conflict)
		}
		if len(s.claims) == 0 {
			delete(c.frontends, s.frontend)
		}
	}
	c.touched = nil
	return conflicts
}

// Conflict is a frontend that more than one Service port claims.
type Conflict struct {
	// Frontend is the address, such as "203.0.113.1:80/TCP", or "node port 30080/TCP".
	Frontend string
	// Owner is the port that gets the frontend.
	Owner model.PortID
	// Others are the ports that do not, in the order in which they would. They keep their other addresses.
	Others []model.PortID
}

func (c *claims) newConflict(s *frontendState) (Conflict, bool) {
	if len(s.claims) < 2 {
		delete(c.contested, s.frontend)
		return Conflict{}, false
	}
	conflict := Conflict{Frontend: s.frontend.String(), Owner: s.claims[0].port.ID}
	for _, other := range s.claims[1:] {
		conflict.Others = append(conflict.Others, other.port.ID)
	}
	claimants := slices.SortedFunc(slices.Values(append(conflict.Others, conflict.Owner)), model.PortID.Compare)
	if slices.Equal(c.contested[s.frontend], claimants) {
		return Conflict{}, false
	}
	c.contested[s.frontend] = claimants
	return conflict, true
}
