package conntrack

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/nftproxy/nftproxy/model"
)

// udpFlows holds the owner of each UDP frontend, and the frontends whose flows have to be searched for.
//
// The rules are those of kube-proxy since 1.37. A translated flow is stale if its frontend is gone; if EndpointSlices
// do not list its endpoint any more; or if its endpoint does not serve and another one does. While none serves, flows to
// listed endpoints stay. A flow that was never translated is stale if its frontend has a serving endpoint.
type udpFlows struct {
	// mu is held for one change or one flow at a time.
	mu       sync.Mutex
	ports    map[model.PortID]*model.ServicePort
	changes  uint64
	families map[model.Family]*udpFrontends
}

// udpFrontends are those of one family. A node port is a frontend without a valid address.
type udpFrontends struct {
	// owners holds the Service port that serves each frontend.
	owners map[netip.AddrPort]*model.ServicePort
	// pending holds the frontends to search for, with the number of the change. Those without an owner are gone.
	pending map[netip.AddrPort]uint64
	// nodePorts are the prefixes on which node ports answer.
	nodePorts []netip.Prefix
}

// maxGone bounds the frontends that are gone and not searched for yet. The flows of others end by their time-outs.
const maxGone = 100_000

func newUDPFlows() *udpFlows {
	u := &udpFlows{ports: map[model.PortID]*model.ServicePort{}, families: map[model.Family]*udpFrontends{}}
	for _, family := range model.Families {
		u.families[family] = &udpFrontends{owners: map[netip.AddrPort]*model.ServicePort{}, pending: map[netip.AddrPort]uint64{}}
	}
	return u
}

// apply notes the frontends that changes concern. It reports whether there are flows to search for.
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
	for family, f := range u.families {
		f.nodePorts = rules.NodePortPrefixes(family)
		pending = pending || len(f.pending) > 0
	}
	return pending
}

// formerly notes a frontend that the rules of an earlier process had.
func (u *udpFlows) formerly(family model.Family, fe netip.AddrPort) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.families[family].gone(fe, u.changes)
}

// lookAtAll notes all frontends.
func (u *udpFlows) lookAtAll() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changes++
	for _, f := range u.families {
		for fe := range f.owners {
			f.pending[fe] = u.changes
		}
	}
}

// set records a port, nil if it is gone, and reconciles the frontends that it had and has.
func (u *udpFlows) set(rules Rules, id model.PortID, port *model.ServicePort) {
	for _, p := range []*model.ServicePort{u.ports[id], port} {
		if p == nil {
			continue
		}
		rules.EachFrontend(p, func(addr netip.Addr, port uint16) {
			u.families[id.Family].reconcile(netip.AddrPortFrom(addr, port), rules.Owner(id.Family, model.UDP, addr, port), u.changes)
		})
	}
	if port == nil {
		delete(u.ports, id)
		return
	}
	u.ports[id] = port
}

// reconcile updates the owner of a frontend after a change, of which it takes the number; nil for none. Only the
// endpoints of the owner count: an author who names another Service's address as an external IP does not get that
// Service's flows removed.
func (f *udpFrontends) reconcile(fe netip.AddrPort, owner *model.ServicePort, change uint64) {
	before := f.owners[fe]
	if owner == nil {
		if before != nil {
			delete(f.owners, fe)
			f.gone(fe, change)
		}
		return
	}
	f.owners[fe] = owner
	if makesStale(before, owner) {
		f.pending[fe] = change
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

// gone notes a frontend that nobody owns any more.
func (f *udpFrontends) gone(fe netip.AddrPort, change uint64) {
	if len(f.pending) < len(f.owners)+maxGone {
		f.pending[fe] = change
	}
}

// begin reports whether to search for flows, and whether some may have dialed a node port. A search that starts now covers
// all changes up to the number upTo.
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

// stale reports whether a UDP flow of a pending frontend is stale. local holds the machine's own addresses: the same port
// number on another machine is no node port.
func (u *udpFlows) stale(f Flow, local []netip.Prefix) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	frontends, fe := u.families[model.FamilyOf(f.Dialed.Addr())], f.Dialed
	if _, pending := frontends.pending[fe]; !pending {
		if frontends.owners[fe] != nil {
			return false
		}
		fe = netip.AddrPortFrom(netip.Addr{}, fe.Port())
		if _, pending := frontends.pending[fe]; !pending || !frontends.answersNodePorts(f.Dialed.Addr(), local) {
			return false
		}
	}
	owner := frontends.owners[fe]
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
	return u.families[model.FamilyOf(addr)].answersNodePorts(addr, local)
}

func (f *udpFrontends) answersNodePorts(addr netip.Addr, local []netip.Prefix) bool {
	return within(local, addr) && within(f.nodePorts, addr)
}

func within(prefixes []netip.Prefix, addr netip.Addr) bool {
	return !addr.IsLoopback() && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
