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
// The rules are kube-proxy's. A flow is stale if the Service port has serving endpoints, and the flow
// leads to another one or was never translated. While there is no serving endpoint, and when the
// address or the Service is gone, flows stay: the endpoint may still answer, and nobody else would.
type udpFlows struct {
	// mu is held for one change or one flow at a time.
	mu    sync.Mutex
	ports map[model.PortID]*model.ServicePort
	// serving holds the serving endpoints of each frontend that has an owner.
	serving map[netip.AddrPort][]netip.AddrPort
	// pending holds the frontends whose flows have to be searched for, by family, with the number of
	// the change that made it so. Frontends without serving endpoints are not among them.
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

// apply notes the frontends whose flows are concerned by changes that rules has applied. It reports whether there are
// flows to search for.
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

// lookAtAll notes all frontends with serving endpoints.
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

// set records a port, nil if it is gone, and adds the frontends that it had and has to concerned.
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

// begin reports whether flows of a family have to be searched for, and whether some may have dialed a node port. A
// search that starts now covers all changes up to the number upTo.
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

// done notes that a search has covered all changes up to the number that begin returned.
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
// local holds the machine's own addresses: the same port number on another machine is no node port.
func (u *udpFlows) stale(f conntrack.Flow, local []netip.Prefix) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	fe, family := f.Dialed, model.FamilyOf(f.Dialed.Addr())
	if _, known := u.serving[fe]; !known {
		if !u.hasNodePorts(fe.Addr(), local) {
			return false
		}
		fe = netip.AddrPortFrom(unspecified(family), fe.Port())
	}
	_, pending := u.pending[family][fe]
	return pending && !contains(u.serving[fe], f.Server)
}

// answersNodePorts reports whether node ports answer on the address. local holds the machine's own addresses.
func (u *udpFlows) answersNodePorts(addr netip.Addr, local []netip.Prefix) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.hasNodePorts(addr, local)
}

// hasNodePorts is answersNodePorts for callers that hold mu.
func (u *udpFlows) hasNodePorts(addr netip.Addr, local []netip.Prefix) bool {
	return within(local, addr) && within(u.nodePorts[model.FamilyOf(addr)], addr)
}

func within(prefixes []netip.Prefix, addr netip.Addr) bool {
	return !addr.IsLoopback() && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
