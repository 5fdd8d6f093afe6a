package leftovers

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/internal/nodeaddr"
)

// The mode ipvs has connections in a table of its own, and kube-ipvs0 makes the addresses of Services local ones, so that
// packets reach IPVS. Once the proxy's own rules serve, they translate new connections before IPVS sees them. Then a
// virtual server stays while it has connections, an address while it has virtual servers, and kube-ipvs0 while there are
// any of these. The iptables rules stay as long: they guard ports of those addresses that no Service has, and masquerade
// what the node sends from such an address. The sets go last: rules name them.
//
// Without kube-ipvs0 all virtual servers are another program's, also one with the number of a node port in a set that stays
// because a rule names it.
//
// Each step leaves a state with which the next process goes on.

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
	// Connections counts those through the virtual servers, in any state, and UDP flows.
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

// ownVirtualServers returns those that kube-proxy made, if there is kube-ipvs0.
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

// virtualServers returns those that kube-proxy made: on addresses of kube-ipvs0, and of node ports.
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

// serve removes a virtual server if it has no connections, or if these end. Else it keeps it from getting more, which can
// still happen where the proxy's own rules serve less: a Service that is gone, a node port on a secondary address.
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
		connections += s.connections
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
		if s.weight == 0 {
			continue
		}
		if err := d.servers.takeNoNew(v, s); err != nil {
			return err
		}
	}
	return nil
}

// addresses removes those of kube-ipvs0 that are not in use, and kube-ipvs0 if nothing is.
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
