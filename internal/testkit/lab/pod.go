package lab

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// pod is a host on node-1 and node-1's end of the link to it.
type pod struct {
	host *Host
	near *port
}

// AddPod adds a pod to node-1. Its address is a route to a veth of its own, named "veth-"
// and a number, or to the bridge if the lab has one, of which the veth is a port then. Pods
// have no route to each other but by node-1, so that it sees every packet either way.
func (l *Lab) AddPod(name string, addrs ...netip.Addr) (*Host, error) {
	addrs = possible(addrs)
	for _, addr := range addrs {
		if owner := l.HostOf(addr); owner != nil {
			return nil, fmt.Errorf("lab: pod %s: address %s is taken by %s", name, addr, owner.Name)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pods[name] != nil {
		return nil, fmt.Errorf("lab: there is a pod %s already", name)
	}
	host, err := newHost(name, leaf)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	number := l.nextLink()
	near := &port{host: l.Node, name: fmt.Sprintf("veth-%d", number)}
	l.pods[name] = &pod{host: host, near: near}
	if err := l.joinPod(number, near, &port{host: host, name: "eth0"}, addrs); err != nil {
		l.abandon(name)
		return nil, fmt.Errorf("lab: %w", err)
	}
	return host, nil
}

// RemovePods removes what AddPod added. It returns when node-1 has no trace of the pods
// left. The kernel waits out a grace period for every removal, so removing many at once
// is much cheaper than one after the other.
func (l *Lab) RemovePods(names ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var links []netlink.Link
	for _, name := range names {
		p := l.pods[name]
		if p == nil {
			return fmt.Errorf("lab: there is no pod %s", name)
		}
		delete(l.pods, name)
		if err := l.removeRoutes(p.host.Addrs()); err != nil {
			return fmt.Errorf("lab: remove pod %s: %w", name, err)
		}
		// Not before the links are removed: when a namespace goes its links go too, some time.
		defer p.host.close()
		if p.near.link != nil {
			links = append(links, p.near.link)
		}
	}
	if err := l.Node.removeLinks(links); err != nil {
		return fmt.Errorf("lab: remove pods: %w", err)
	}
	return nil
}

// removeRoutes removes a pod's addresses from the bridge. Without a bridge they go with the pod's link.
func (l *Lab) removeRoutes(addrs []netip.Addr) error {
	if l.bridge == nil {
		return nil
	}
	index := l.bridge.link.Attrs().Index
	for _, addr := range addrs {
		err := firstError(
			func() error {
				return l.Node.routes.RouteDel(&netlink.Route{LinkIndex: index, Dst: single(addr), Scope: netlink.SCOPE_LINK})
			},
			func() error { return l.Node.routes.NeighDel(&netlink.Neigh{LinkIndex: index, IP: addr.AsSlice()}) },
		)
		if err != nil {
			return fmt.Errorf("remove the routes to %s: %w", addr, err)
		}
	}
	return nil
}

// abandon lets go of a pod that did not come to be. Whatever it got goes with its namespace.
func (l *Lab) abandon(name string) {
	l.pods[name].host.close()
	delete(l.pods, name)
}

func (l *Lab) joinPod(number int, near, far *port, addrs []netip.Addr) error {
	if err := connect(number, near, far); err != nil {
		return err
	}
	if l.bridge != nil {
		if err := l.bridge.enslave(near); err != nil {
			return err
		}
		near = l.bridge
	}
	joined := map[bool]bool{}
	for _, addr := range addrs {
		err := firstError(
			func() error { return far.host.addAddr(far.link, addr) },
			func() error { return near.knows(addr, far) },
			func() error { return near.reach(only(addr), netip.Addr{}, NodeAddrs.Like(addr)) },
		)
		if err != nil {
			return err
		}
		if joined[addr.Is4()] {
			continue
		}
		joined[addr.Is4()] = true
		if err := l.joinFamily(near, far, addr, GatewayAddrs.Like(addr)); err != nil {
			return err
		}
	}
	return nil
}

// joinFamily gives a pod its gateway. What the pod sends starts from addr, its first address in the family.
func (l *Lab) joinFamily(near, far *port, addr, gateway netip.Addr) error {
	return firstError(
		func() error {
			if near == l.bridge {
				return nil // It has its addresses already.
			}
			return near.host.addAddr(near.link, gateway)
		},
		func() error { return far.knows(gateway, near) },
		func() error { return far.reach(only(gateway), netip.Addr{}, addr) },
		func() error { return far.reach(everything(addr), gateway, addr) },
	)
}
