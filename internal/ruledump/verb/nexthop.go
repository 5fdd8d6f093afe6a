package verb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// nextHops finds the gateways by which the node reaches endpoints. The rules do not say on which node an endpoint is; with
// most networks of pods the gateway does.
type nextHops struct {
	conn *netlink.Conn
	// known holds what was asked already.
	known map[netip.Addr]string
	// err is the first failure.
	err error
}

func newNextHops() (*nextHops, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("open a socket for routes: %w", err)
	}
	return &nextHops{conn: conn, known: map[netip.Addr]string{}}, nil
}

func (n *nextHops) close() { _ = n.conn.Close() }

// of returns "via" and the gateway; "dev" and a device, if the node reaches the address without one, as it does its own
// pods; "this node"; or "" for an address without a route.
func (n *nextHops) of(addr netip.Addr) string {
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

const rtmsgLen = 12

func (n *nextHops) ask(addr netip.Addr) (string, error) {
	family := byte(unix.AF_INET)
	if addr.Is6() {
		family = unix.AF_INET6
	}
	body := netlinkattr.List(append([]byte{family, byte(addr.BitLen())}, make([]byte, rtmsgLen-2)...))
	body.Bytes(unix.RTA_DST, addr.AsSlice())
	replies, err := n.conn.Execute(netlink.Message{Header: netlink.Header{Type: unix.RTM_GETROUTE, Flags: netlink.Request}, Data: body})
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return "", nil // no route, or one of type unreachable, prohibit or blackhole
	case err != nil:
		return "", err
	case len(replies) == 0 || len(replies[0].Data) < rtmsgLen:
		return "", netlinkattr.ErrShort
	}
	const typeOffset = 7 // rtm_type
	route := replies[0].Data
	if route[typeOffset] == unix.RTN_LOCAL {
		return "this node", nil
	}
	attributes := route[rtmsgLen:]
	if gateway, ok := netip.AddrFromSlice(netlinkattr.Find(attributes, unix.RTA_GATEWAY)); ok {
		return "via " + gateway.String(), nil
	}
	if index := netlinkattr.Find(attributes, unix.RTA_OIF); len(index) == 4 {
		if device, err := net.InterfaceByIndex(int(binary.NativeEndian.Uint32(index))); err == nil {
			return "dev " + device.Name, nil
		}
	}
	return "", nil
}
