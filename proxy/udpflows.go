package proxy

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/model"
)

// udpFlows holds the endpoints that serve each UDP frontend, and the frontends whose flows have to be searched for.
//
// The rules are kube-proxy's. A flow is stale if the Service port has serving endpoints, and the flow
// leads to another one or was never translated. While there is no serving endpoint, and when the
// address or the Service is gone, flows stay: the endpoint may still answer, and nobody else would.
type udpFlows struct {
	// mu is held for one change or one flow at a time.
	mu       sync.Mutex
	ports    map[model.PortID]*model.ServicePort
	changes  uint64
	families map[model.Family]*udpFrontends
}

// udpFrontends are those of one family. A frontend is an address and port. A node port is one too, without a valid
// address.
type udpFrontends struct {
	// serving holds the serving endpoints of each frontend that has an owner.
	serving map[netip.AddrPort][]netip.AddrPort
	// pending holds the frontends whose flows have to be searched for, with the number of the change that made it so.
	// Frontends without serving endpoints are not among them.
	pending map[netip.AddrPort]uint64
	// nodePorts are the prefixes on which node ports answer.
	nodePorts []netip.Prefix
}

func newUDPFlows() *udpFlows {
	u := &udpFlows{ports: map[model.PortID]*model.ServicePort{}, families: map[model.Family]*udpFrontends{}}
	for _, family := range model.Families {
		u.families[family] = &udpFrontends{serving: map[netip.AddrPort][]netip.AddrPort{}, pending: map[netip.AddrPort]uint64{}}
	}
	return u
}

// apply notes the frontends whose flows are concerned by changes that rules has applied. It reports whether there are
// flows to search for.
func (u *udpFlows) apply(rules *compiler.Compiler, changes *model.Changes) (pending bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changes++
	if changes.Full {
		for id := range u.ports {
			if changes.Ports[id] == nil {
				u.set(rules, id, nil)
			}
		}
	}
	for id, port := range changes.Ports {
		if id.Protocol == model.UDP {
			u.set(rules, id, port)
		}
	}
	for family, f := range u.families {
		f.nodePorts = rules.NodePortPrefixes(family)
		pending = pending || len(f.pending) > 0
	}
	return pending
}

// lookAtAll notes all frontends with serving endpoints.
func (u *udpFlows) lookAtAll() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changes++
	for _, f := range u.families {
		for fe, serving := range f.serving {
			if len(serving) > 0 {
				f.pending[fe] = u.changes
			}
		}
	}
}

// set records a port, nil if it is gone, and reconciles the frontends that it had and has.
func (u *udpFlows) set(rules *compiler.Compiler, id model.PortID, port *model.ServicePort) {
	for _, p := range []*model.ServicePort{u.ports[id], port} {
		if p == nil {
			continue
		}
		compiler.EachFrontend(p, func(addr netip.Addr, port uint16) {
			u.families[id.Family].reconcile(netip.AddrPortFrom(addr, port), rules.Owner(id.Family, model.UDP, addr, port), u.changes)
		})
	}
	if port == nil {
		delete(u.ports, id)
		return
	}
	u.ports[id] = port
}

// reconcile updates the endpoints of a frontend after a change, of which it takes the number, to those of its owner;
// nil for none. Only the endpoints of the owner count: an author who names another Service's address as an external IP
// does not get that Service's flows removed.
func (f *udpFrontends) reconcile(fe netip.AddrPort, owner *model.ServicePort, change uint64) {
	if owner == nil {
		delete(f.serving, fe)
		delete(f.pending, fe)
		return
	}
	before, now := f.serving[fe], owner.Serving
	f.serving[fe] = now
	switch {
	case len(now) == 0:
		delete(f.pending, fe)
	case len(before) == 0 || slices.ContainsFunc(before, func(e netip.AddrPort) bool { return !contains(now, e) }):
		f.pending[fe] = change
	}
}

// contains looks in a sorted list.
func contains(serving []netip.AddrPort, endpoint netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(serving, endpoint, netip.AddrPort.Compare)
	return found
}

// begin reports whether flows of a family have to be searched for, and whether some may have dialed a node port. A
// search that starts now covers all changes up to the number upTo.
func (u *udpFlows) begin(family model.Family) (some, nodePorts bool, upTo uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	pending := u.families[family].pending
	for fe := range pending {
		if !fe.Addr().IsValid() {
			nodePorts = true
			break
		}
	}
	return len(pending) > 0, nodePorts, u.changes
}

// done notes that a search has covered all changes up to the number that begin returned.
func (u *udpFlows) done(family model.Family, upTo uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.families[family].pending, func(_ netip.AddrPort, change uint64) bool { return change <= upTo })
}

// stale reports whether a UDP flow leads from a pending frontend to an endpoint that does not serve it.
// local holds the machine's own addresses: the same port number on another machine is no node port.
func (u *udpFlows) stale(f conntrack.Flow, local []netip.Prefix) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	frontends, fe := u.families[model.FamilyOf(f.Dialed.Addr())], f.Dialed
	if _, known := frontends.serving[fe]; !known {
		if !frontends.answersNodePorts(fe.Addr(), local) {
			return false
		}
		fe = netip.AddrPortFrom(netip.Addr{}, fe.Port())
	}
	_, pending := frontends.pending[fe]
	return pending && !contains(frontends.serving[fe], f.Server)
}

// answersNodePorts reports whether node ports answer on the address. local holds the machine's own addresses.
func (u *udpFlows) answersNodePorts(addr netip.Addr, local []netip.Prefix) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.families[model.FamilyOf(addr)].answersNodePorts(addr, local)
}

func (f *udpFrontends) answersNodePorts(addr netip.Addr, local []netip.Prefix) bool {
	return within(local, addr) && within(f.nodePorts, addr)
}

func within(prefixes []netip.Prefix, addr netip.Addr) bool {
	return !addr.IsLoopback() && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
