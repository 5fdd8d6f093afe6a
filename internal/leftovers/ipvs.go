package leftovers

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/internal/nodeaddr"
)

// IPVS tracks its connections in a table of its own, and kube-ipvs0 makes the addresses of Services local addresses, so that
// packets reach IPVS. Once the proxy's own rules serve, they translate new connections before IPVS sees them. So the removal
// waits for the old connections: a virtual server stays while it has connections, an address while it has virtual servers,
// and kube-ipvs0 while it has addresses. The iptables rules stay as long as kube-ipvs0: they guard the ports of its addresses
// that no Service has, and masquerade packets that the node sends from its addresses. The sets go last, because rules name
// them.
//
// Without kube-ipvs0 every virtual server belongs to another program, even if its port is in a set of node ports that a rule
// keeps.
//
// The next process can continue after any step.

// ipvsLeftovers returns the names of what the mode ipvs left. It does not ask IPVS: without the device, a virtual server may
// be anybody's.
func ipvsLeftovers() (names []string, err error) {
	d, err := readDevice()
	if err != nil {
		return nil, err
	}
	if d != nil {
		names = append(names, ipvsDevice)
	}
	sets, err := ipsets()
	for _, name := range sets {
		names = append(names, setName(name))
	}
	return names, err
}

// Draining counts what stays of the mode ipvs for the sake of its connections.
type Draining struct {
	VirtualServers int
	// Connections counts the connections through the virtual servers, in any state, and UDP flows.
	Connections int
	// Addresses are on kube-ipvs0, because of virtual servers or because sockets of the node use them.
	Addresses int
}

// drain is a pass over the virtual servers and over kube-ipvs0.
type drain struct {
	*Removal
	servers *ipvsConn
	// ends says that connections have had enough time.
	ends bool
	// busy has the addresses of virtual servers with connections.
	busy map[netip.Addr]bool
}

// drain removes virtual servers of kube-proxy without connections, then addresses without virtual servers, then
// kube-ipvs0 without addresses. After the timeout it removes all.
func (r *Remover) drain(ctx context.Context) (removal Removal, err error) {
	device, err := readDevice()
	if device == nil || err != nil {
		r.begun = time.Time{}
		return removal, err
	}
	servers, err := dialIPVS()
	if err != nil {
		return removal, err
	}
	now := time.Now()
	if r.begun.IsZero() {
		r.begun = now
	}
	pass := drain{Removal: &removal, servers: servers, ends: now.Sub(r.begun) >= r.DrainTimeout, busy: map[netip.Addr]bool{}}
	if servers != nil {
		defer servers.Close()
		own, err := r.virtualServers(servers, device)
		if err != nil {
			return removal, err
		}
		for _, v := range own {
			if err := pass.serve(ctx, v); err != nil {
				return removal, err
			}
		}
	}
	if err = pass.addresses(device); err == nil && removal.Draining == (Draining{}) {
		r.begun = time.Time{}
	}
	return removal, err
}

// ownVirtualServers returns the virtual servers that kube-proxy made, or none without kube-ipvs0.
func (r *Remover) ownVirtualServers() ([]virtualServer, error) {
	device, err := readDevice()
	if device == nil || err != nil {
		return nil, err
	}
	servers, err := dialIPVS()
	if servers == nil || err != nil {
		return nil, err
	}
	defer servers.Close()
	return r.virtualServers(servers, device)
}

// virtualServers returns the virtual servers that kube-proxy made: on addresses of kube-ipvs0, and for node ports.
func (r *Remover) virtualServers(c *ipvsConn, d *device) (own []virtualServer, err error) {
	all, err := c.virtualServers()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	sets, err := dialIPSet()
	if err != nil {
		return nil, err
	}
	if sets != nil {
		defer sets.Close()
	}
	mine, err := nodeaddr.OfInterfaces()
	if err != nil {
		return nil, err
	}
	services, local := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, a := range d.addresses {
		services[a] = true
	}
	for _, a := range mine {
		local[a] = true
	}
	for _, v := range all {
		addr := v.at.Addr()
		if slices.ContainsFunc(r.Excluded, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			continue
		}
		is := services[addr]
		if !is && sets != nil && local[addr] {
			if is, err = sets.isNodePort(v); err != nil {
				return nil, err
			}
		}
		if is {
			own = append(own, v)
		}
	}
	return own, nil
}

// serve removes a virtual server that has no connections, or whose connections have had enough time. Otherwise it keeps new
// connections away from the virtual server. There can be new ones where the proxy's own rules serve less than the mode ipvs
// did: for a Service that is gone, or for a node port on a secondary address.
func (d *drain) serve(ctx context.Context, v virtualServer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	servers, err := d.servers.realServers(v)
	if err != nil {
		return err
	}
	connections := 0
	for _, s := range servers {
		connections += int(s.ActiveConnections) + int(s.InactiveConnections)
	}
	if connections == 0 || d.ends {
		if err := d.servers.delete(v); err != nil {
			return err
		}
		d.Ended += connections
		d.remove(v.String(), true)
		return nil
	}
	d.busy[v.at.Addr()] = true
	d.Draining.VirtualServers++
	d.Draining.Connections += connections
	for _, s := range servers {
		if s.Weight == 0 {
			continue
		}
		if err := d.servers.takeNoNew(v, s.Destination); err != nil {
			return err
		}
	}
	return nil
}

// addresses removes the unused addresses of kube-ipvs0, and kube-ipvs0 itself if no virtual server and no address is in use.
func (d *drain) addresses(device *device) error {
	unused := slices.DeleteFunc(slices.Clone(device.addresses), func(a netip.Addr) bool { return d.busy[a] })
	if len(unused) > 0 && !d.ends {
		used, err := usedBySockets()
		if err != nil {
			return err
		}
		unused = slices.DeleteFunc(unused, used)
	}
	d.Draining.Addresses = len(device.addresses) - len(unused)
	if d.Draining == (Draining{}) {
		if err := device.remove(); err != nil {
			return err
		}
		d.remove(ipvsDevice, true)
		return nil
	}
	for _, a := range unused {
		if err := device.removeAddress(a); err != nil {
			return err
		}
	}
	return nil
}
