package verb

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nextHops finds the gateways by which the node reaches endpoints. The rules do not say on which node an endpoint is;
// with most networks of pods the gateway does.
type nextHops struct {
	handle *netlink.Handle
	// known holds what was asked already.
	known map[netip.Addr]string
	// err is the first failure.
	err error
}

// noRoute stands for the next hop of an address that the node cannot reach.
const noRoute = "no route"

func newNextHops() (*nextHops, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a socket for routes: %w", err)
	}
	return &nextHops{handle: handle, known: map[netip.Addr]string{}}, nil
}

func (n *nextHops) close() { n.handle.Close() }

// to returns "via" and the gateway; "dev" and a device, if the node reaches the address without one, as it does its own
// pods; "this node"; noRoute for an address without a route; or "" if the device is gone.
func (n *nextHops) to(addr netip.Addr) string {
	hop, known := n.known[addr]
	if !known {
		var err error
		if hop, err = n.ask(addr); err != nil && n.err == nil {
			n.err = fmt.Errorf("find the route to %s: %w", addr, err)
		}
		n.known[addr] = hop
	}
	return hop
}

func (n *nextHops) ask(addr netip.Addr) (string, error) {
	routes, err := n.handle.RouteGet(addr.AsSlice())
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return noRoute, nil // none, or one of type unreachable, prohibit or blackhole
	case err != nil || len(routes) == 0:
		return "", err
	case routes[0].Type == unix.RTN_LOCAL:
		return "this node", nil
	case routes[0].Gw != nil:
		return "via " + routes[0].Gw.String(), nil
	}
	if device, err := net.InterfaceByIndex(routes[0].LinkIndex); err == nil {
		return "dev " + device.Name, nil
	}
	return "", nil
}
