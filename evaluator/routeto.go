package evaluator

import "net/netip"

// RouteTo returns the route by which a packet of the node's own leaves for an address, before any rule has seen it. It reports
// false if there is none, or if routing rules look at more than the destination and so nobody can tell.
func (e *Evaluator) RouteTo(addr netip.Addr) (Route, bool) {
	r, unknown := e.lookup(query{to: addr, iif: loopback})
	return r, unknown == "" && (r.Destination.IsValid() || r.Type != "")
}
