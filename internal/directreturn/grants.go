package directreturn

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// maxAddresses bounds the elements, because anybody who may annotate a Service may request direct return: a hundred
// addresses have 680,000 elements on a node with a third of the endpoints, and their first sync takes 4 s.
const maxAddresses = 50

// shareOf is the number of addresses, of most, that Service ports of one namespace may have.
func shareOf(most int) int { return (2*most + 4) / 5 }

// grants decides which Service ports have direct return: the oldest, so that a new Service takes it from no other. All nodes
// decide alike, because the decision does not depend on earlier ones. It does not depend on endpoints either: their coming
// and going must not take direct return from another Service.
type grants struct {
	requests map[model.PortID]*request
	// changed says that requests changed since decide.
	changed bool
}

// request is a Service port that asks for direct return.
type request struct {
	port    *model.ServicePort
	granted bool
	// slots are the slots of its frontends; nil until a frontend is served.
	slots *slots
	// told says that Without has returned the Service port.
	told bool
}

// ask notes the state of a Service port, nil if it is gone. Direct return needs policy Cluster.
func (g *grants) ask(id model.PortID, port *model.ServicePort) {
	r := g.requests[id]
	asks := port != nil && port.DirectReturn && port.ExternalPolicy == model.PolicyCluster && addresses(port) > 0
	g.changed = g.changed || asks || r != nil
	switch {
	case !asks:
		delete(g.requests, id)
	case r != nil:
		r.port = port
	default:
		g.requests[id] = &request{port: port}
	}
}

// addresses returns the number of external addresses of a Service port.
func addresses(p *model.ServicePort) int { return len(p.LoadBalancerIPs) + len(p.ExternalIPs) }

// decide grants direct return while the addresses are no more than most, and reports whether a Service port got or lost it.
func (g *grants) decide(most int) (changed bool) {
	if !g.changed {
		return false
	}
	g.changed = false
	free, shares := most, map[string]int{}
	for _, r := range slices.SortedFunc(maps.Values(g.requests), oldest) {
		before, n := r.granted, addresses(r.port)
		share := shares[r.port.ID.Namespace] + n
		if r.granted = n <= free && share <= shareOf(most); r.granted {
			shares[r.port.ID.Namespace] = share
			free -= n
		}
		changed = changed || r.granted != before
	}
	return changed
}

func oldest(a, b *request) int {
	return cmp.Or(a.port.Creation.Compare(b.port.Creation), a.port.ID.Compare(b.port.ID))
}

// slotsOf returns the slots of a Service port; nil if it has no direct return.
func (g *grants) slotsOf(port *model.ServicePort) *slots {
	r := g.requests[port.ID]
	if r == nil || !r.granted || len(port.Cluster) == 0 || len(port.Cluster) > maxEndpoints {
		return nil
	}
	if r.slots == nil || !r.slots.isOf(port) {
		r.slots = newSlots(port)
	}
	return r.slots
}

// without returns the Service ports that ask and have no direct return because of the limits of addresses and endpoints: news
// are the Service ports that it has not returned yet, all is the number of all. A Service port with a grant and without
// endpoints does not count, because it has slots as soon as it has endpoints.
func (g *grants) without() (news []model.PortID, all int) {
	for id, r := range g.requests {
		told := r.told
		if r.told = !r.granted || len(r.port.Cluster) > maxEndpoints; r.told {
			all++
			if !told {
				news = append(news, id)
			}
		}
	}
	return news, all
}
