package verb

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// finish sorts the causes, and fills in the cells, the endpoints and the verdict.
func (e *checker) finish() *Check {
	causes := slices.SortedFunc(maps.Values(e.causes), func(a, b *cause) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(b.cells, a.cells), cmp.Compare(a.order, b.order))
	})
	index := map[*cause]int{}
	for i, c := range causes {
		index[c] = i
		e.Findings = append(e.Findings, c.finding())
	}
	for i := range e.Services {
		cells := e.Services[i].Cells
		for j := range cells {
			switch c := e.cells[i*len(e.clients)+j]; {
			case c == nil:
			case c.undecided:
				cells[j] = cellUndecided
			default:
				cells[j] = index[c]
			}
		}
	}
	e.addEndpoints(causes)
	if len(causes) > 0 && causes[0].Level == levelBroken {
		e.Verdict = verdictBroken
	}
	return e.Check
}

// addEndpoints lists each endpoint once, with the worst finding about it.
func (e *checker) addEndpoints(causes []*cause) {
	all := map[netip.AddrPort]*CheckEndpoint{}
	for _, f := range e.frontends {
		for addr := range serversOf(f) {
			if all[addr] == nil {
				place, n := e.rules.Places[addr.Addr()], e.flows[addr]
				all[addr] = &CheckEndpoint{Address: addr, Node: place.Node, Pod: place.Pod, Finding: cellWorks, Connections: n.all(), Unanswered: n.Unanswered}
			}
			all[addr].Services++
		}
	}
	for i, c := range causes {
		for addr := range c.endpoints {
			if endpoint := all[addr]; endpoint != nil && endpoint.Finding == cellWorks {
				endpoint.Finding = i
			}
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(all), netip.AddrPort.Compare) {
		e.Endpoints = append(e.Endpoints, *all[addr])
	}
}
