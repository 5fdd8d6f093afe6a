package entrance

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/internal/nodeaddr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Obstacle says why packets to other machines, forwarded as they are to the next hop of the routes to some addresses, would
// not arrive or would leave unencrypted; empty if they arrive. Their own destination is another address, so a tunnel must
// be chosen by the next hop, and no IPsec policy may be meant for them. The network namespace is the thread's.
func Obstacle(to []netip.Addr) (string, error) {
	policies, err := nodeaddr.Policies()
	if err != nil {
		return "", fmt.Errorf("list the xfrm policies: %w", err)
	}
	policies = slices.DeleteFunc(policies, func(p nodeaddr.Policy) bool { return p.Direction != netlink.XFRM_DIR_OUT || !p.Block && !p.Transform })
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return "", err
	}
	defer handle.Close()
	tunnels, err := tunnelsByDestination(handle)
	if err != nil {
		return "", err
	}
	for _, addr := range to {
		if i := slices.IndexFunc(policies, func(p nodeaddr.Policy) bool { return p.Destination.Contains(addr) }); i >= 0 {
			return fmt.Sprintf("an xfrm policy for %s would not match, so packets to %s would leave unencrypted", policies[i].Destination, addr), nil
		}
		if len(tunnels) == 0 { // most nodes: 20,000 routes would take half a second
			continue
		}
		routes, err := handle.RouteGet(addr.AsSlice())
		if err != nil && !leadsNowhere(err) {
			return "", fmt.Errorf("ask for the route to %s: %w", addr, err)
		}
		for _, r := range routes {
			if tunnel := tunnels[r.LinkIndex]; tunnel != nil {
				return fmt.Sprintf("device %s (%s) may choose the tunnel by the packet's destination", tunnel.Attrs().Name, tunnel.Type()), nil
			}
		}
	}
	return "", nil
}

// tunnelsByDestination returns the devices that are byDestination, by their indices.
func tunnelsByDestination(handle *netlink.Handle) (map[int]netlink.Link, error) {
	links, err := handle.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the devices: %w", err)
	}
	tunnels := map[int]netlink.Link{}
	for _, link := range links {
		if byDestination(link) {
			tunnels[link.Attrs().Index] = link
		}
	}
	return tunnels, nil
}

// leadsNowhere reports whether the kernel has no route, or one of type unreachable, prohibit or blackhole.
func leadsNowhere(err error) bool {
	return slices.ContainsFunc([]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL}, func(e error) bool { return errors.Is(err, e) })
}

// byDestination reports whether a device chooses the tunnel of a packet by the packet's own destination, or lets a program
// choose, and not by the next hop.
func byDestination(link netlink.Link) bool {
	switch l := link.(type) {
	case *netlink.Vxlan:
		return l.FlowBased
	case *netlink.Geneve:
		return l.FlowBased
	case *netlink.Gretap:
		return l.FlowBased
	case *netlink.Gretun:
		return l.FlowBased
	case *netlink.Iptun:
		return l.FlowBased
	case *netlink.Ip6tnl:
		return l.FlowBased
	case *netlink.Tuntap:
		return l.Mode == netlink.TUNTAP_MODE_TUN
	}
	return slices.Contains([]string{"wireguard", "openvswitch", "xfrm", "vti", "vti6"}, link.Type())
}

// Inside returns the names, sorted, of the devices with networks for which this machine is the gateway, such as those of
// containers and virtual machines: devices that have an address, but none of own, and by which no route leads to another
// gateway. Packets that enter by them come from inside the node, or the node translates their source. The network namespace
// is the thread's.
func Inside(own []netip.Addr) (names []string, err error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the addresses: %w", err)
	}
	has, isOutside := map[int]bool{}, map[int]bool{}
	for _, a := range addresses {
		addr, _ := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		has[a.LinkIndex] = has[a.LinkIndex] || addr.IsGlobalUnicast()
		isOutside[a.LinkIndex] = isOutside[a.LinkIndex] || slices.Contains(own, addr)
	}
	err = eachRoute(unix.RT_TABLE_UNSPEC, func(r netlink.Route) {
		if hasGateway(r) || isDefault(r) {
			isOutside[r.LinkIndex] = true
			for _, hop := range r.MultiPath {
				isOutside[hop.LinkIndex] = true
			}
		}
	})
	for _, i := range interfaces {
		if has[i.Index] && !isOutside[i.Index] && i.Flags&net.FlagLoopback == 0 {
			names = append(names, i.Name)
		}
	}
	slices.Sort(names)
	return names, err
}
