package health

import (
	"net"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// addresses returns where to listen in each family for which something is configured,
// sorted. A family that answers on all its addresses has the unspecified one. If the
// machine's addresses cannot be listed there are none.
func (s *Services) addresses() map[model.Family][]netip.Addr {
	prefixes := slices.Clone(s.options.CIDRs)
	if s.options.Primary {
		for _, ip := range s.nodeIPs {
			prefixes = append(prefixes, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	mine := machineAddresses()
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
	return out
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

// machineAddresses returns the addresses of all interfaces. Link-local ones of IPv6 are left
// out: they mean nothing without an interface.
func machineAddresses() []netip.Addr {
	nets, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var out []netip.Addr
	for _, n := range nets {
		prefix, err := netip.ParsePrefix(n.String())
		if err != nil || prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		out = append(out, prefix.Addr())
	}
	return out
}
