package lab

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// joinRemote links node-1 and node-2 as neighbours, with the networks of pods behind them.
func (l *Lab) joinRemote() error {
	near, far := &port{host: l.Node, name: "eth0"}, &port{host: l.Remote, name: "eth0"}
	if err := connect(l.nextLink(), near, far); err != nil {
		return err
	}
	for i, remote := range RemoteAddrs.list() {
		node := NodeAddrs.Like(remote)
		err := firstError(
			func() error { return near.host.addAddr(near.link, node) },
			func() error { return far.host.addAddr(far.link, remote) },
			func() error { return far.host.addAddr(far.host.loopback(), RemotePodAddrs.Like(remote)) },
			func() error { return near.knows(remote, far) },
			func() error { return far.knows(node, near) },
			func() error { return near.reach(only(remote), netip.Addr{}, node) },
			func() error { return far.reach(only(node), netip.Addr{}, remote) },
			func() error { return near.reach(RemotePodNetworks[i], remote, node) },
			func() error { return far.reach(everything(node), node, remote) },
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// joinOutside links the host outside to node-1, which is its only way to anywhere. In turn
// node-1 sends there what it knows nothing about, where it is dropped.
func (l *Lab) joinOutside() error {
	near, far := &port{host: l.Node, name: "outside"}, &port{host: l.Outside, name: "eth0"}
	if err := connect(l.nextLink(), near, far); err != nil {
		return err
	}
	for _, outside := range OutsideAddrs.list() {
		node, second := NodeAddrs.Like(outside), SecondOutsideAddrs.Like(outside)
		err := firstError(
			func() error { return far.host.addAddr(far.link, outside) },
			func() error { return far.host.addAddr(far.link, second) },
			func() error { return near.knows(outside, far) },
			func() error { return near.knows(second, far) },
			func() error { return far.knows(node, near) },
			func() error { return near.reach(only(outside), netip.Addr{}, node) },
			func() error { return near.reach(only(second), netip.Addr{}, node) },
			func() error { return near.reach(everything(node), outside, node) },
			func() error { return far.reach(only(node), netip.Addr{}, outside) },
			func() error { return far.reach(everything(node), node, outside) },
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// routeToRemote leads node-1 to a pod on node-2 that is outside the network of pods there.
func (l *Lab) routeToRemote(addr netip.Addr) error {
	eth0, err := l.Node.routes.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	way := &port{host: l.Node, name: "eth0", link: eth0}
	return way.reach(only(addr), RemoteAddrs.Like(addr), NodeAddrs.Like(addr))
}

func (l *Lab) unrouteToRemote(addr netip.Addr) error {
	if err := l.Node.routes.RouteDel(&netlink.Route{Dst: single(addr)}); err != nil {
		return fmt.Errorf("lab: remove route to %s: %w", addr, err)
	}
	return nil
}

// firstError runs steps in turn up to the first that fails.
func firstError(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
