package health

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodeaddr"
)

// addresses returns where to listen in each family for which something is configured. If the
// machine's addresses cannot be listed there are none.
func (s *Services) addresses() map[model.Family][]netip.Addr {
	prefixes := slices.Clone(s.options.CIDRs)
	if s.options.Primary {
		for _, ip := range s.nodeIPs {
			prefixes = append(prefixes, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	addresses, err := nodeaddr.Within(prefixes)
	if err != nil {
		s.logger.Error(err, "Cannot serve the health checks of Services")
	}
	return addresses
}
