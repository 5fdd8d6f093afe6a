package conntrack

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/nftproxy/nftproxy/model"
)

// udpFlows holds the owner of each UDP frontend, and the frontends to search for.
//
// A translated flow is stale if its frontend is gone; if EndpointSlices do not list its endpoint any more; or if its
// endpoint does not serve and another endpoint does. While no endpoint serves, flows to listed endpoints stay, as over
// TCP: a single replica that is unready for seconds keeps its peers. kube-proxy 1.37 deletes these flows, and keeps
// flows of frontends that are gone. An untranslated flow is stale if its frontend has a serving endpoint.
type udpFlows struct {
	// mu is held for one change or one flow at a time.
	mu    sync.Mutex
	ports map[model.PortID]*model.ServicePort
	// changes counts the calls of apply and lookAtAll.
	changes uint64
	// owners holds the Service port that serves each frontend.
	owners map[udpFrontend]*model.ServicePort
	// pending holds the frontends to search for, with the number of the change. Frontends without an owner are gone.
	pending map[udpFrontend]uint64
	// nodePorts are the prefixes on which node ports answer.
	nodePorts map[model.Family][]netip.Prefix
}

// udpFrontend is an address and port, or a node port if the address is invalid.
type udpFrontend struct {
	family model.Family
	at     netip.AddrPort
}

// maxGone bounds the frontends that are gone and not searched for yet. The flows of further frontends end by their
// timeouts.
const maxGone = 100_000

func newUDPFlows() *udpFlows {
	return &udpFlows{
		ports: map[model.PortID]*model.ServicePort{}, owners: map[udpFrontend]*model.ServicePort{},
		pending: map[udpFrontend]uint64{}, nodePorts: map[model.Family][]netip.Prefix{},
	}
}

// apply records the frontends of changes, and reports whether there are flows to search for.
func (u *udpFlows) apply(rules Rules, changes *model.Changes) (pending bool) {
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
	for _, family := range model.Families {
		u.nodePorts[family] = rules.NodePortPrefixes(family)
	}
	return len(u.pending) > 0
}

// lookAtAll records all frontends.
func (u *udpFlows) lookAtAll() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changes++
	for fe := range u.owners {
		u.pending[fe] = u.changes
	}
}

// set records a port, nil if it is gone, and reconciles the frontends that it had and has.
func (u *udpFlows) set(rules Rules, id model.PortID, port *model.ServicePort) {
	for _, p := range []*model.ServicePort{u.ports[id], port} {
		if p == nil {
			continue
		}
		rules.EachFrontend(p, func(addr netip.Addr, port uint16) {
			u.reconcile(udpFrontend{id.Family, netip.AddrPortFrom(addr, port)}, rules.Owner(id.Family, model.UDP, addr, port))
		})
	}
	if port == nil {
		delete(u.ports, id)
		return
	}
	u.ports[id] = port
}

// reconcile updates the owner of a frontend after a change; nil for none. Only the owner's endpoints count: an external
// IP that names another Service's address does not remove this Service's flows.
func (u *udpFlows) reconcile(fe udpFrontend, owner *model.ServicePort) {
	before := u.owners[fe]
	if owner == nil {
		if before != nil {
			delete(u.owners, fe)
			u.gone(fe)
		}
		return
	}
	u.owners[fe] = owner
	if makesStale(before, owner) {
		u.pending[fe] = u.changes
	}
}

// makesStale reports whether flows can be stale after a frontend's owner before, nil for none, became now.
func makesStale(before, now *model.ServicePort) bool {
	if before == nil || len(before.Serving) == 0 && len(now.Serving) > 0 {
		return true
	}
	lost := func(e netip.AddrPort) bool { return !now.KeepsFlow(e) }
	return slices.ContainsFunc(before.Serving, lost) || slices.ContainsFunc(before.NotServing, lost)
}

// gone records a frontend without an owner. The caller holds mu.
func (u *udpFlows) gone(fe udpFrontend) {
	if len(u.pending) < len(u.owners)+maxGone {
		u.pending[fe] = u.changes
	}
}

// begin reports whether to search for flows, and whether any may have dialed a node port. A search from now on covers
// all changes up to the number upTo.
func (u *udpFlows) begin(family model.Family) (some, nodePorts bool, upTo uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for fe := range u.pending {
		some = some || fe.family == family
		if fe.family == family && !fe.at.Addr().IsValid() {
			nodePorts = true
			break
		}
	}
	return some, nodePorts, u.changes
}

// done records a search that has covered all changes up to the number that begin returned.
func (u *udpFlows) done(family model.Family, upTo uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.pending, func(fe udpFrontend, change uint64) bool { return fe.family == family && change <= upTo })
}

// stale reports whether a UDP flow of a pending frontend is stale. local holds the machine's own addresses: a port
// number on another machine is no node port.
func (u *udpFlows) stale(f Flow, local []netip.Prefix) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	fe := udpFrontend{model.FamilyOf(f.Dialed.Addr()), f.Dialed}
	if _, pending := u.pending[fe]; !pending {
		if u.owners[fe] != nil {
			return false
		}
		fe.at = netip.AddrPortFrom(netip.Addr{}, fe.at.Port())
		if _, pending := u.pending[fe]; !pending || !within(local, f.Dialed.Addr()) ||
			!within(u.nodePorts[fe.family], f.Dialed.Addr()) {
			return false
		}
	}
	owner := u.owners[fe]
	switch {
	case owner == nil:
		return f.Translated()
	case owner.KeepsFlow(f.Server):
		return false
	default:
		return f.Translated() || len(owner.Serving) > 0
	}
}

// answersNodePorts reports whether node ports answer on the address. local holds the machine's own addresses.
func (u *udpFlows) answersNodePorts(addr netip.Addr, local []netip.Prefix) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return within(local, addr) && within(u.nodePorts[model.FamilyOf(addr)], addr)
}

func within(prefixes []netip.Prefix, addr netip.Addr) bool {
	return !addr.IsLoopback() && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
