package nodeaddr

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"slices"

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
		read := 0
		for r, err := range routes(0, header{family: family, table: unix.RT_TABLE_MAIN, typ: unix.RTN_UNICAST}) {
			if err != nil {
				return nil, 0, fmt.Errorf("list the routes: %w", err)
			}
			if read++; read > maxRoutes {
				break
			}
			hop := r.hop()
			device, known := byIndex[hop.device]
			mtu := cmp.Or(hop.mtu, device.MTU)
			switch {
			case !known:
			case r.bits == 0:
				defaultMTU = max(defaultMTU, mtu)
			case hop.hasGateway, hop.mtu > 0, device.Flags&net.FlagPointToPoint != 0:
				hops[Hop{device.Name, mtu}] = true
			}
		}
	}
	maps.DeleteFunc(hops, func(h Hop, _ bool) bool { return h.MTU >= defaultMTU })
	return slices.SortedFunc(maps.Keys(hops), func(a, b Hop) int {
		return cmp.Or(cmp.Compare(a.Interface, b.Interface), cmp.Compare(a.MTU, b.MTU))
	}), defaultMTU, nil
}

// nextHop holds what decides about a route. One with several next hops has the first one's device.
type nextHop struct {
	hasGateway  bool
	device, mtu int
	// more are the devices of the next hops after the first.
	more []int
}

func (r route) hop() (h nextHop) {
	_ = netlinkattr.Each(r.attributes, func(typ uint16, payload []byte) error {
		switch {
		case typ == unix.RTA_GATEWAY, typ == unix.RTA_VIA:
			h.hasGateway = true
		case typ == unix.RTA_OIF && len(payload) == 4:
			h.device = int(binary.NativeEndian.Uint32(payload))
		case typ == unix.RTA_METRICS:
			if mtu := netlinkattr.Find(payload, unix.RTAX_MTU); len(mtu) == 4 {
				h.mtu = int(binary.NativeEndian.Uint32(mtu))
			}
		case typ == unix.RTA_MULTIPATH && len(payload) >= unix.SizeofRtNexthop:
			h.hasGateway = true
			h.device = int(int32(binary.NativeEndian.Uint32(payload[4:])))
			for next := rtnexthopLength(payload); len(payload)-next >= unix.SizeofRtNexthop; next = rtnexthopLength(payload) {
				payload = payload[next:]
				h.more = append(h.more, int(int32(binary.NativeEndian.Uint32(payload[4:]))))
			}
		}
		return nil
	})
	return h
}

// rtnexthopLength returns the length of the first struct rtnexthop with its attributes.
func rtnexthopLength(hops []byte) int {
	return max(netlinkattr.Padded(int(binary.NativeEndian.Uint16(hops))), unix.SizeofRtNexthop)
}
