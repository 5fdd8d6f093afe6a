package compiler

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// rank orders the claims for one frontend. The API server gives out ClusterIPs, a controller sets load balancer IPs,
// and the author of a Service writes external IPs. An external IP must not take over an address of the other two
// (CVE-2020-8554).
//
// Unlike in kube-proxy, it does not even while the owner has no endpoints: an author
// would only have to wait for a crash.
type rank uint8

const (
	rankClusterIP rank = iota
	rankLoadBalancer
	rankExternalIP
	rankNodePort
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

// externalAddresses returns the number of addresses of a Service port beside its ClusterIP.
func externalAddresses(p *model.ServicePort) int { return len(p.LoadBalancerIPs) + len(p.ExternalIPs) }

// EachFrontend calls do with the address and port of each frontend that a Service port claims. For a node port, addr is
// the zero value. A frontend comes twice if the Service port names its address twice.
func (c *Compiler) EachFrontend(p *model.ServicePort, do func(addr netip.Addr, port uint16)) {
	eachFrontend(p, func(_ rank, fe frontend) { do(fe.addr, fe.port) })
}

// claim is the demand of a Service port for a frontend.
type claim struct {
	rank rank
	port *portPlans
}

func (c *claim) plan() plan { return c.port.of(c.rank) }

// before reports whether c wins over other: by rank, then a port with endpoints over one without, as in kube-proxy,
// then by name. Age does not matter, so all nodes decide alike.
func (c *claim) before(other *claim) bool {
	if c.rank != other.rank {
		return c.rank < other.rank
	}
	mine, theirs := c.plan(), other.plan()
	if mine.serves() != theirs.serves() {
		return mine.serves()
	}
	return c.port.ID.Compare(other.port.ID) < 0
}

type claims struct {
	frontends map[frontend]*frontendState
	// touched holds the frontends to reconcile, each once.
	touched []*frontendState
	// contested holds, for each frontend with several claimants, those that Apply returned last, sorted.
	contested map[frontend][]model.PortID
}

type frontendState struct {
	frontend frontend
	// claims are sorted, the owner's first.
	claims []claim
	first  [1]claim // the memory of the first claim
	// applied is the plan that is in the draft.
	applied plan
	touched bool
}

func (s *frontendState) plan() plan {
	if len(s.claims) == 0 {
		return plan{}
	}
	return s.claims[0].plan()
}

func newClaims(ports int) claims {
	return claims{
		frontends: make(map[frontend]*frontendState, ports),
		touched:   make([]*frontendState, 0, ports),
		contested: map[frontend][]model.PortID{},
	}
}

func (c *claims) addPort(p *portPlans) {
	eachFrontend(p.ServicePort, func(r rank, fe frontend) { c.add(fe, claim{r, p}) })
}

// add adds a claim. Of two claims of one port the first counts.
func (c *claims) add(fe frontend, new claim) {
	s := c.frontends[fe]
	if s == nil {
		s = &frontendState{frontend: fe}
		s.claims = s.first[:0]
		c.frontends[fe] = s
	}
	if slices.ContainsFunc(s.claims, func(have claim) bool { return have.port.ID == new.port.ID }) {
		return
	}
	at, _ := slices.BinarySearchFunc(s.claims, new, func(have, new claim) int {
		if have.before(&new) {
			return -1
		}
		return 1
	})
	s.claims = slices.Insert(s.claims, at, new)
	c.touch(s)
}

func (c *claims) removePort(p *portPlans) {
	eachFrontend(p.ServicePort, func(_ rank, fe frontend) {
		s := c.frontends[fe]
		s.claims = slices.DeleteFunc(s.claims, func(c claim) bool { return c.port.ID == p.ID })
		c.touch(s)
	})
}

func (c *claims) touch(s *frontendState) {
	if !s.touched {
		s.touched = true
		c.touched = append(c.touched, s)
	}
}

func (c *claims) applied(fe frontend) plan {
	if s := c.frontends[fe]; s != nil {
		return s.applied
	}
	return plan{}
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

// reconcileTouched calls do with each touched frontend, and returns the conflicts over them whose claimants changed.
func (c *claims) reconcileTouched(do func(*frontendState)) (conflicts []Conflict) {
	for _, s := range c.touched {
		s.touched = false
		do(s)
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
