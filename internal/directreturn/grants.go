package directreturn

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// maxAddresses bounds the elements, because anybody who may annotate a Service asks for direct return: a hundred
// addresses have 680,000 elements on a node with a third of the endpoints, and their first sync takes 4 s.
const maxAddresses = 50

// shareOf is the number of addresses, of most, that Service ports of one namespace may have.
func shareOf(most int) int { return (2*most + 4) / 5 }

// grants decides which Service ports have direct return: the oldest ones, so that a new Service takes it from none. All nodes
// decide alike, whatever happened before. Endpoints do not matter: their coming and going must not take direct return from
// another Service.
type grants struct {
	asking  map[model.PortID]demand
	granted map[model.PortID]bool
	// without has the Service ports that ask for direct return and have none because of a limit. Those of news were not
	// returned yet.
	without map[model.PortID]bool
	news    []model.PortID
	// changed says that asking changed since decide.
	changed bool
}

// demand is what a Service port asks for.
type demand struct {
	// addresses is the number of its external addresses.
	addresses int
	created   model.Creation
}

func newGrants() grants {
	return grants{asking: map[model.PortID]demand{}, granted: map[model.PortID]bool{}, without: map[model.PortID]bool{}}
}

// ask takes the state of a Service port, nil if it is gone. Direct return needs policy Cluster.
func (g *grants) ask(id model.PortID, p *model.ServicePort) {
	var d demand
	if p != nil && p.DirectReturn && p.ExternalPolicy == model.PolicyCluster {
		d.addresses = len(p.LoadBalancerIPs) + len(p.ExternalIPs)
		if p.Creation != nil {
			d.created = *p.Creation
		}
	}
	if d == g.asking[id] {
		return
	}
	g.changed = true
	g.asking[id] = d
	if d.addresses == 0 {
		delete(g.asking, id)
		delete(g.without, id)
	}
}

// note notes whether a Service port has slots. One without endpoints may have them later.
func (g *grants) note(p *model.ServicePort, has bool) {
	switch {
	case g.asking[p.ID].addresses == 0:
	case has || g.granted[p.ID] && len(p.Cluster) == 0:
		delete(g.without, p.ID)
	case !g.without[p.ID]:
		g.without[p.ID] = true
		g.news = append(g.news, p.ID)
	}
}

// decide reports whether a Service port got or lost direct return, of which most addresses may have it.
func (g *grants) decide(most int) (changed bool) {
	if !g.changed {
		return false
	}
	before, free := g.granted, most
	g.granted, g.changed = map[model.PortID]bool{}, false
	oldest := func(a, b model.PortID) int {
		x, y := g.asking[a].created, g.asking[b].created
		return cmp.Or(x.Compare(&y), a.Compare(b))
	}
	shares := map[string]int{}
	for _, id := range slices.SortedFunc(maps.Keys(g.asking), oldest) {
		n := g.asking[id].addresses
		if share := shares[id.Namespace] + n; n <= free && share <= shareOf(most) {
			g.granted[id] = true
			shares[id.Namespace] = share
			free -= n
		}
	}
	return !maps.Equal(before, g.granted)
}
