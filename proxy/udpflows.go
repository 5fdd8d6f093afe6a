package proxy

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/model"
)

// udpFlows knows which endpoints serve each UDP frontend, and which frontends lost one, or
// got their first, since stale flows were last removed.
type udpFlows struct {
	ports map[model.PortID]*model.ServicePort
	// users holds the ports that have a frontend.
	users map[netip.AddrPort]map[model.PortID]bool
	// touched holds the frontends whose flows have to be looked at, by family. A node port is
	// known by the unspecified address of its family.
	touched map[model.Family]map[netip.AddrPort]bool
	nodeIPs []netip.Addr
}

func newUDPFlows() *udpFlows {
	return &udpFlows{
		ports:   map[model.PortID]*model.ServicePort{},
		users:   map[netip.AddrPort]map[model.PortID]bool{},
		touched: map[model.Family]map[netip.AddrPort]bool{},
	}
}

// apply takes changes in and notes the frontends whose flows they concern.
func (u *udpFlows) apply(changes *model.Changes) {
	if changes.Node != nil {
		u.nodeIPs = changes.Node.IPs
	}
	if changes.Full {
		for id := range u.ports {
			if changes.Ports[id] == nil {
				u.set(id, nil)
			}
		}
	}
	for id, port := range changes.Ports {
		if id.Protocol == model.UDP {
			u.set(id, port)
		}
	}
}

func (u *udpFlows) set(id model.PortID, port *model.ServicePort) {
	old := u.ports[id]
	before, now := frontendsOf(old), frontendsOf(port)
	for _, fe := range before {
		delete(u.users[fe], id)
		if len(u.users[fe]) == 0 {
			delete(u.users, fe)
		}
		if !slices.Contains(now, fe) || endpointsLeft(old, port) {
			u.touch(fe)
		}
	}
	for _, fe := range now {
		if u.users[fe] == nil {
			u.users[fe] = map[model.PortID]bool{}
		}
		u.users[fe][id] = true
		// Packets that came while there was no endpoint may have made entries that lead nowhere.
		if !slices.Contains(before, fe) || len(old.Serving) == 0 && len(port.Serving) > 0 {
			u.touch(fe)
		}
	}
	if port == nil {
		delete(u.ports, id)
		return
	}
	u.ports[id] = port
}

func (u *udpFlows) touch(fe netip.AddrPort) {
	family := model.FamilyOf(fe.Addr())
	if u.touched[family] == nil {
		u.touched[family] = map[netip.AddrPort]bool{}
	}
	u.touched[family][fe] = true
}

// endpointsLeft reports whether an endpoint of old does not serve any more.
func endpointsLeft(old, port *model.ServicePort) bool {
	return port == nil || slices.ContainsFunc(old.Serving, func(e netip.AddrPort) bool { return !serves(port, e) })
}

func serves(p *model.ServicePort, endpoint netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(p.Serving, endpoint, netip.AddrPort.Compare)
	return found
}

func frontendsOf(p *model.ServicePort) []netip.AddrPort {
	if p == nil {
		return nil
	}
	var out []netip.AddrPort
	if p.ClusterIP.IsValid() {
		out = append(out, netip.AddrPortFrom(p.ClusterIP, p.Port))
	}
	for _, list := range [][]netip.Addr{p.LoadBalancerIPs, p.ExternalIPs} {
		for _, addr := range list {
			out = append(out, netip.AddrPortFrom(addr, p.Port))
		}
	}
	if p.NodePort != 0 {
		out = append(out, netip.AddrPortFrom(unspecified(p.ID.Family), p.NodePort))
	}
	return out
}

func unspecified(f model.Family) netip.Addr {
	if f == model.IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// stale reports whether a UDP flow leads to a touched frontend and from there to what does
// not serve it.
func (u *udpFlows) stale(f conntrack.Flow) bool {
	family := model.FamilyOf(f.Dialed.Addr())
	touched := u.touched[family]
	if _, known := u.users[f.Dialed]; known || touched[f.Dialed] {
		return touched[f.Dialed] && !u.serves(f.Dialed, f.Server)
	}
	nodePort := netip.AddrPortFrom(unspecified(family), f.Dialed.Port())
	// Only what was translated, or went to the node itself, can have been meant for a node
	// port; the same number on another machine is none of our business.
	ours := f.Translated() || slices.Contains(u.nodeIPs, f.Dialed.Addr())
	return ours && touched[nodePort] && !u.serves(nodePort, f.Server)
}

func (u *udpFlows) serves(fe, endpoint netip.AddrPort) bool {
	for id := range u.users[fe] {
		if serves(u.ports[id], endpoint) {
			return true
		}
	}
	return false
}

// clean removes the stale flows, in one search of the table for each family in which there
// is a reason to look, and reports each to done. What could not be removed is tried again
// the next time.
func (u *udpFlows) clean(conn *conntrack.Conn, done func(model.Family, conntrack.Stats)) error {
	var failures []error
	for _, family := range model.Families {
		if len(u.touched[family]) == 0 {
			continue
		}
		stats, err := conn.DeleteFlows(family, uint8(model.UDP), u.stale)
		done(family, stats)
		if err == nil {
			clear(u.touched[family])
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}
