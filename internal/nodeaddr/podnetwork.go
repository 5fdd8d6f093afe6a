package nodeaddr

import (
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
	"golang.org/x/sys/unix"
)

// LeadsInto reports whether the node has a route to a part of a network, in any routing table; each of its own addresses
// has one. A default route leads into no network. It lists routes until it has found one.
func LeadsInto(network netip.Prefix) (bool, error) {
	for _, typ := range []uint8{unix.RTN_UNICAST, unix.RTN_LOCAL} {
		for r, err := range routes(0, header{family: addressFamilies[model.FamilyOf(network.Addr())], table: unix.RT_TABLE_UNSPEC, typ: typ}) {
			if err != nil {
				return false, fmt.Errorf("list the routes into %s: %w", network, err)
			}
			if to, ok := r.destination(); ok && to.Bits() > 0 && to.Overlaps(network) {
				return true, nil
			}
		}
	}
	return false, nil
}
