package proxy

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/model"
)

// udpFlows holds the endpoints that serve each UDP frontend, and the frontends whose flows have to be searched for. A
// frontend is an address and port, or a node port, which has the unspecified address of its family.
//
// The rules are kube-proxy's. A flow is stale when it leads to an endpoint that does not serve
// the Service port any more, or was never translated, and the Service port has endpoints that
// serve. Without any, and when the address or the Service is gone, flows are left alone: the
// endpoint may still answer, and nobody else would.
type udpFlows struct {
	// mu is never held for longer than it takes to look at one change or one flow.
	mu    sync.Mutex
	ports map[model.PortID]*model.ServicePort
	// serving holds the endpoints that serve each frontend; none for a frontend whose owner
	// has none.
	serving map[netip.AddrPort][]netip.AddrPort
	// pending holds the frontends whose flows have to be looked at, by family, with the number of
	// the change that made it so. Those of a frontend that nobody serves are not among them.
	pending   map[model.Family]map[netip.AddrPort]uint64
	changes   uint64
	nodePorts map[model.Family][]netip.Prefix
}

func newUDPFlows() *udpFlows {
	u := &udpFlows{
		ports:     map[model.PortID]*model.ServicePort{},
		serving:   map[netip.AddrPort][]netip.AddrPort{},
		pending:   map[model.Family]map[netip.AddrPort]uint64{},
		nodePorts: map[model.Family][]netip.Prefix{},
	}
	for _, family := range model.Families {
		u.pending[family] = map[netip.AddrPort]uint64{}
	}
	return u
}

// apply takes in changes that rules has applied, and notes the frontends whose flows they
// concern. It reports whether flows have to be looked at.
func (u *udpFlows) apply(rules *compiler.Compiler, changes *model.Changes) (pending bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changes++
	concerned := map[netip.AddrPort]bool{}
	if changes.Full {
		for id := range u.ports {
			if changes.Ports[id] == nil {
				u.set(id, nil, concerned)
			}
		}
	}
	for id, port := range changes.Ports {
		if id.Protocol == model.UDP {
			u.set(id, port, concerned)
		}
	}
	for fe := range concerned {
		u.reconcile(fe, rules)
	}
	for _, family := range model.Families {
		u.nodePorts[family] = rules.NodePortPrefixes(family)
		pending = pending || len(u.pending[family]) > 0
	}
	return pending
}

// lookAtAll notes all frontends that somebody serves.
func (u *udpFlows) lookAtAll() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changes++
	for fe, serving := range u.serving {
		if len(serving) > 0 {
			u.pending[model.FamilyOf(fe.Addr())][fe] = u.changes
		}
	}
}

// set notes what the port with that ID is now, and the frontends that it had and has.
func (u *udpFlows) set(id model.PortID, port *model.ServicePort, concerned map[netip.AddrPort]bool) {
	for _, p := range []*model.ServicePort{u.ports[id], port} {
		if p == nil {
			continue
		}
		compiler.EachFrontend(p, func(addr netip.Addr, port uint16) {
			if !addr.IsValid() {
				addr = unspecified(id.Family)
			}
			concerned[netip.AddrPortFrom(addr, port)] = true
		})
	}
	if port == nil {
		delete(u.ports, id)
		return
	}
	u.ports[id] = port
}

// reconcile updates the endpoints of a frontend after a change of its owner. Only the endpoints
// of the owner count: an author who names another Service's address as an external IP does
// not get that Service's flows removed.
func (u *udpFlows) reconcile(fe netip.AddrPort, rules *compiler.Compiler) {
	family := model.FamilyOf(fe.Addr())
	addr := fe.Addr()
	if addr.IsUnspecified() {
		addr = netip.Addr{}
	}
	owner := rules.Owner(family, model.UDP, addr, fe.Port())
	if owner == nil {
		delete(u.serving, fe)
		delete(u.pending[family], fe)
		return
	}
	before, now := u.serving[fe], owner.Serving
	u.serving[fe] = now
	switch {
	case len(now) == 0:
		delete(u.pending[family], fe)
	case len(before) == 0 || slices.ContainsFunc(before, func(e netip.AddrPort) bool { return !contains(now, e) }):
		u.pending[family][fe] = u.changes
	}
}

// contains looks in a sorted list.
func contains(serving []netip.AddrPort, endpoint netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(serving, endpoint, netip.AddrPort.Compare)
	return found
}

func unspecified(f model.Family) netip.Addr {
	if f == model.IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// begin reports whether flows of a family have to be looked at, whether some may have dialed
// a node port, and the number of the change up to which a search that starts now sees them.
func (u *udpFlows) begin(family model.Family) (some, nodePorts bool, upTo uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for fe := range u.pending[family] {
		if fe.Addr().IsUnspecified() {
			nodePorts = true
			break
		}
	}
	return len(u.pending[family]) > 0, nodePorts, u.changes
}

// done notes that a search has seen all flows that were there when begin returned upTo.
func (u *udpFlows) done(family model.Family, upTo uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for fe, change := range u.pending[family] {
		if change <= upTo {
			delete(u.pending[family], fe)
		}
	}
}

// stale reports whether a UDP flow leads from a pending frontend to an endpoint that does not serve it.
// local holds the machine's own addresses: a node port's number on another machine is none of
// its business.
func (u *udpFlows) stale(f conntrack.Flow, local []netip.Prefix) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	fe, family := f.Dialed, model.FamilyOf(f.Dialed.Addr())
	if _, known := u.serving[fe]; !known {
		if !within(local, fe.Addr()) || !within(u.nodePorts[family], fe.Addr()) {
			return false
		}
		fe = netip.AddrPortFrom(unspecified(family), fe.Port())
	}
	_, pending := u.pending[family][fe]
	return pending && !contains(u.serving[fe], f.Server)
}

// answersNodePorts reports whether node ports answer on the address, if it is one of the machine's own.
func (u *udpFlows) answersNodePorts(addr netip.Addr) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return within(u.nodePorts[model.FamilyOf(addr)], addr)
}

func within(prefixes []netip.Prefix, addr netip.Addr) bool {
	return !addr.IsLoopback() && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
