package entrance

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Hop is an interface by which routes lead to other machines, and the length of packets that it takes.
type Hop struct {
	Interface string
	MTU       int
}

func (h Hop) String() string { return fmt.Sprintf("%s (%d)", h.Interface, h.MTU) }

// maxRoutes bounds the routes of a family that SmallHops reads: a node may have those of the whole Internet.
const maxRoutes = 10_000

// SmallHops returns the hops, sorted, whose MTU is smaller than the MTU of the default route, and the MTU of the default
// route: 0 without a default route. It looks at the routes of the main table with a gateway, with an MTU of their own, or by
// a device without neighbours such as WireGuard's. Others lead to pods of this machine or to its own networks. The network
// namespace is the thread's.
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
	err = eachRoute(unix.RT_TABLE_MAIN, func(r netlink.Route) {
		index := r.LinkIndex
		if len(r.MultiPath) > 0 { // the first one's device counts
			index = r.MultiPath[0].LinkIndex
		}
		device, known := byIndex[index]
		mtu := cmp.Or(r.MTU, device.MTU)
		switch {
		case !known:
		case isDefault(r):
			defaultMTU = max(defaultMTU, mtu)
		case hasGateway(r), r.MTU > 0, device.Flags&net.FlagPointToPoint != 0:
			hops[Hop{device.Name, mtu}] = true
		}
	})
	if err != nil {
		return nil, 0, err
	}
	maps.DeleteFunc(hops, func(h Hop, _ bool) bool { return h.MTU >= defaultMTU })
	return slices.SortedFunc(maps.Keys(hops), func(a, b Hop) int {
		return cmp.Or(cmp.Compare(a.Interface, b.Interface), cmp.Compare(a.MTU, b.MTU))
	}), defaultMTU, nil
}

// eachRoute calls do with the first routes of a table and of type unicast, in both IP families; RT_TABLE_UNSPEC for all tables.
func eachRoute(table int, do func(netlink.Route)) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		read := 0
		err := netlink.RouteListFilteredIter(family, &netlink.Route{Table: table, Type: unix.RTN_UNICAST}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE, func(r netlink.Route) bool {
			do(r)
			read++
			return read < maxRoutes
		})
		if err != nil {
			return fmt.Errorf("list the routes: %w", err)
		}
	}
	return nil
}

func hasGateway(r netlink.Route) bool { return r.Gw != nil || r.Via != nil || len(r.MultiPath) > 0 }

func isDefault(r netlink.Route) bool {
	bits, _ := r.Dst.Mask.Size()
	return bits == 0
}
