package nodeaddr

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"syscall"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Hop is an interface by which routes lead to other machines, and how long packets may be there.
type Hop struct {
	Interface string
	MTU       int
}

func (h Hop) String() string { return fmt.Sprintf("%s (%d)", h.Interface, h.MTU) }

// maxRoutes bounds the routes of a family that SmallHops reads: a node may have those of the whole Internet.
const maxRoutes = 10_000

// SmallHops returns the hops, sorted, whose MTU is smaller than that of the default route, and the latter: 0 without a
// default route. It looks at the routes of the main table with a gateway, with an MTU of their own, or by a device without
// neighbours such as WireGuard's. Others lead to pods of this machine or to its own networks. The network namespace is the
// thread's.
func SmallHops() (small []Hop, defaultMTU int, err error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, 0, fmt.Errorf("list the interfaces: %w", err)
	}
	byIndex := map[int]net.Interface{}
	for _, i := range interfaces {
		byIndex[i.Index] = i
	}
	hops := map[Hop]bool{}
	for _, family := range addressFamilies {
		err := eachRoute(family, maxRoutes, func(r hopRoute) {
			device := byIndex[r.device]
			mtu := cmp.Or(r.mtu, device.MTU)
			switch {
			case r.isDefault:
				defaultMTU = max(defaultMTU, mtu)
			case r.hasGateway, r.mtu > 0, device.Flags&net.FlagPointToPoint != 0:
				hops[Hop{device.Name, mtu}] = true
			}
		})
		if err != nil {
			return nil, 0, fmt.Errorf("list the routes: %w", err)
		}
	}
	maps.DeleteFunc(hops, func(h Hop, _ bool) bool { return h.MTU >= defaultMTU })
	return slices.SortedFunc(maps.Keys(hops), func(a, b Hop) int {
		return cmp.Or(cmp.Compare(a.Interface, b.Interface), cmp.Compare(a.MTU, b.MTU))
	}), defaultMTU, nil
}

// hopRoute holds what decides about a route. One with several next hops has the first one's device.
type hopRoute struct {
	isDefault, hasGateway bool
	device, mtu           int
}

// eachRoute calls do for the first unicast routes of a family in the main table. Unlike Local it does not read all first.
func eachRoute(family uint8, most int, do func(hopRoute)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	timeout := unix.NsecToTimeval(answerTimeout.Nanoseconds())
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	if err != nil {
		return err
	}
	request := make([]byte, unix.SizeofNlMsghdr)
	binary.NativeEndian.PutUint32(request, unix.SizeofNlMsghdr+unix.SizeofRtMsg)
	binary.NativeEndian.PutUint16(request[4:], unix.RTM_GETROUTE)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	request = append(request, header{family: family, table: unix.RT_TABLE_MAIN, typ: unix.RTN_UNICAST}.encode()...)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buffer := make([]byte, 1<<16)
	for most > 0 {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				if errno := unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data))); errno != unix.ENOENT {
					return errno
				}
				return nil // no table: no interface ever had an address
			case unix.RTM_NEWROUTE:
				if r, ok := decodeHop(m.Data, family); ok {
					do(r)
				}
				most--
			}
		}
	}
	return nil
}

func decodeHop(message []byte, family uint8) (r hopRoute, ok bool) {
	if len(message) < unix.SizeofRtMsg || message[0] != family || message[4] != unix.RT_TABLE_MAIN || message[7] != unix.RTN_UNICAST {
		return r, false
	}
	r.isDefault = message[1] == 0
	err := netlinkattr.Each(message[unix.SizeofRtMsg:], func(typ uint16, payload []byte) error {
		switch {
		case typ == unix.RTA_GATEWAY, typ == unix.RTA_VIA:
			r.hasGateway = true
		case typ == unix.RTA_OIF && len(payload) == 4:
			r.device = int(binary.NativeEndian.Uint32(payload))
		case typ == unix.RTA_METRICS:
			if mtu := netlinkattr.Find(payload, unix.RTAX_MTU); len(mtu) == 4 {
				r.mtu = int(binary.NativeEndian.Uint32(mtu))
			}
		case typ == unix.RTA_MULTIPATH && len(payload) >= unix.SizeofRtNexthop:
			r.hasGateway = true
			r.device = int(int32(binary.NativeEndian.Uint32(payload[4:])))
		}
		return nil
	})
	return r, err == nil && r.device > 0
}
