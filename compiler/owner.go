package compiler

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
)

// Owner returns the Service port to which packets for an address and port go, or, with an
// address that is not valid, packets for a node port. It returns nil when no Service port
// claims them.
func (c *Compiler) Owner(family model.Family, protocol model.Protocol, addr netip.Addr, port uint16) *model.ServicePort {
	f := c.families[familyIndex(family)]
	s := f.frontends[frontend{addr, port, protocol}]
	if s == nil {
		return nil
	}
	return s.claims[0].port
}

// NodePortPrefixes returns where node ports of a family answer: on those of the node's own
// addresses that the prefixes contain. Loopback addresses are never among them.
func (c *Compiler) NodePortPrefixes(family model.Family) []netip.Prefix {
	return c.families[familyIndex(family)].nodePortPrefixes()
}
