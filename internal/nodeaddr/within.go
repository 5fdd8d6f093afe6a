// Package nodeaddr finds the machine's own addresses: those of its interfaces (OfInterfaces), those that
// nodePortAddresses selects (Within), and those that decide whether the destination of a packet or a flow is this machine
// (Local).
package nodeaddr

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// Within returns the addresses on which a server has to listen so that it answers on each of the machine's addresses in
// prefixes, sorted. For a prefix of length 0 the list of the family is the unspecified address alone. A family without
// a prefix has no list; one with prefixes, but without an address of the machine in them, has an empty list.
//
// It looks at the interfaces of the network namespace of the calling thread, and leaves
// out link-local addresses of IPv6.
func Within(prefixes []netip.Prefix) (map[model.Family][]netip.Addr, error) {
	mine, err := OfInterfaces()
	if err != nil {
		return nil, err
	}
	mine = slices.DeleteFunc(mine, func(addr netip.Addr) bool { return addr.Is6() && addr.IsLinkLocalUnicast() })
	out := map[model.Family][]netip.Addr{}
	for _, prefix := range prefixes {
		family := model.FamilyOf(prefix.Addr())
		out[family] = append(out[family], within(prefix, mine)...)
	}
	for family, list := range out {
		slices.SortFunc(list, netip.Addr.Compare)
		// The unspecified address sorts first. With it no other can be listened on.
		if len(list) > 0 && list[0].IsUnspecified() {
			list = list[:1]
		}
		out[family] = slices.Compact(list)
	}
	return out, nil
}

func within(prefix netip.Prefix, addresses []netip.Addr) (out []netip.Addr) {
	if prefix.Bits() == 0 {
		return []netip.Addr{prefix.Masked().Addr()}
	}
	for _, addr := range addresses {
		if prefix.Contains(addr) {
			out = append(out, addr)
		}
	}
	return out
}

// OfInterfaces returns the addresses of the interfaces in the network namespace of the calling thread.
func OfInterfaces() (out []netip.Addr, err error) {
	nets, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of interfaces: %w", err)
	}
	for _, n := range nets {
		if prefix, err := netip.ParsePrefix(n.String()); err == nil {
			out = append(out, prefix.Addr())
		}
	}
	return out, nil
}
