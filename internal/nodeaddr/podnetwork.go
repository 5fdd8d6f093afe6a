package nodeaddr

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/vishvananda/netlink"
)

// LeadsInto reports whether the node has a route to a part of a network, in any routing table; each of its own addresses
// has one. A default route leads into no network. It lists all routes of the IP family.
func LeadsInto(network netip.Prefix) (bool, error) {
	family := int(addressFamilies[model.FamilyOf(network.Addr())])
	routes, err := netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE) // of every table
	if err != nil {
		return false, fmt.Errorf("list the routes into %s: %w", network, err)
	}
	return slices.ContainsFunc(routes, func(r netlink.Route) bool {
		if r.Dst == nil {
			return false
		}
		to, err := netip.ParsePrefix(r.Dst.String())
		return err == nil && to.Bits() > 0 && to.Overlaps(network)
	}), nil
}
