package lab

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// port is a host's end of a link between two hosts.
type port struct {
	host *Host
	name string
	link netlink.Link
	mac  net.HardwareAddr
}

// connect joins two hosts with a veth pair. number makes the two hardware addresses
// unique; they are chosen here so that neighbours can be static without asking for them.
func connect(number int, a, b *port) error {
	a.mac, b.mac = hardwareAddr(number, 1), hardwareAddr(number, 2)
	pair := netlink.NewVeth(netlink.LinkAttrs{Name: a.name, HardwareAddr: a.mac})
	pair.PeerName, pair.PeerHardwareAddr = b.name, b.mac
	pair.PeerNamespace = netlink.NsFd(b.host.namespace.FD())
	if err := a.host.routes.LinkAdd(pair); err != nil {
		return fmt.Errorf("connect %s to %s: %w", a.host.Name, b.host.Name, err)
	}
	for _, end := range []*port{a, b} {
		if err := end.up(); err != nil {
			return fmt.Errorf("connect %s to %s: link %s: %w", a.host.Name, b.host.Name, end.name, err)
		}
	}
	return firstError(a.awaitUp, b.awaitUp)
}

// awaitUp waits until this end of the link transmits. The kernel leaves that to a work queue
// too, and throws away without a trace what is sent before: the first packet to a new pod.
func (p *port) awaitUp() error {
	for deadline := time.Now().Add(await.Patience); time.Now().Before(deadline); time.Sleep(50 * time.Microsecond) {
		link, err := p.host.routes.LinkByIndex(p.link.Attrs().Index)
		if err == nil && link.Attrs().OperState == netlink.OperUp {
			return nil
		}
	}
	return fmt.Errorf("host %s: link %s does not come up", p.host.Name, p.name)
}

// newBridge makes a bridge of node-1 and gives it the addresses that pods have as their gateway.
func newBridge(node *Host, name string, number int) (*port, error) {
	p := &port{host: node, name: name, mac: hardwareAddr(number, 1)}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: p.mac}}
	steps := []func() error{func() error { return node.routes.LinkAdd(bridge) }, p.up}
	for _, addr := range GatewayAddrs.list() {
		steps = append(steps, func() error { return node.addAddr(p.link, addr) })
	}
	if err := firstError(steps...); err != nil {
		return nil, fmt.Errorf("bridge %s: %w", name, err)
	}
	return p, nil
}

// enslave makes other a port of the bridge p. With br_netfilter a packet that comes back to its pod is bridged, which
// needs hairpin mode: network plugins have it as hairpinMode.
func (p *port) enslave(other *port) error {
	err := firstError(
		func() error { return p.host.routes.LinkSetMaster(other.link, p.link) },
		func() error { return p.host.routes.LinkSetHairpin(other.link, true) },
	)
	if err != nil {
		return fmt.Errorf("host %s: connect %s to the bridge %s: %w", p.host.Name, other.name, p.name, err)
	}
	return p.awaitUp() // Without a port it does not transmit.
}

func (p *port) up() (err error) {
	if p.link, err = p.host.routes.LinkByName(p.name); err != nil {
		return err
	}
	return p.host.routes.LinkSetUp(p.link)
}

// knows makes addr a static neighbour behind this end of the link.
func (p *port) knows(addr netip.Addr, other *port) error {
	err := p.host.routes.NeighAdd(&netlink.Neigh{
		LinkIndex:    p.link.Attrs().Index,
		State:        netlink.NUD_PERMANENT,
		IP:           addr.AsSlice(),
		HardwareAddr: other.mac,
	})
	if err != nil {
		return fmt.Errorf("host %s: add neighbour %s: %w", p.host.Name, addr, err)
	}
	return nil
}

// reach routes to over the link, directly when via is not valid, and lets what the host
// itself sends there start from source.
func (p *port) reach(to netip.Prefix, via, source netip.Addr) error {
	route := &netlink.Route{
		LinkIndex: p.link.Attrs().Index,
		Dst:       network(to),
		Src:       source.AsSlice(),
		Scope:     netlink.SCOPE_LINK,
	}
	if via.IsValid() {
		route.Gw, route.Scope, route.Flags = via.AsSlice(), netlink.SCOPE_UNIVERSE, unix.RTNH_F_ONLINK
	}
	if err := p.host.routes.RouteAdd(route); err != nil {
		return fmt.Errorf("host %s: add route to %s: %w", p.host.Name, to, err)
	}
	return nil
}

// doomed is the link group that removeLinks uses.
const doomed = 1

// removeLinks removes links in one go: the kernel does that for a link group.
func (h *Host) removeLinks(links []netlink.Link) error {
	if len(links) == 0 {
		return nil
	}
	for _, link := range links {
		if err := h.routes.LinkSetGroup(link, doomed); err != nil {
			return fmt.Errorf("host %s: group link %s: %w", h.Name, link.Attrs().Name, err)
		}
	}
	return h.Do(func() error {
		request := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
		request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		request.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(doomed)))
		if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
			return fmt.Errorf("host %s: remove links: %w", h.Name, err)
		}
		return nil
	})
}

func hardwareAddr(number int, end byte) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0, byte(number >> 16), byte(number >> 8), byte(number), end}
}

// everything is the default route of addr's family.
func everything(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func only(addr netip.Addr) netip.Prefix {
	return netip.PrefixFrom(addr, addr.BitLen())
}

func single(addr netip.Addr) *net.IPNet {
	return network(only(addr))
}

func network(prefix netip.Prefix) *net.IPNet {
	addr := prefix.Addr()
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(prefix.Bits(), addr.BitLen())}
}

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
