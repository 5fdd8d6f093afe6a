package compiler

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
)

// Owner returns the Service port that serves an address and port, or, if addr is the zero value, a node port. It
// returns nil if no Service port claims them.
func (c *Compiler) Owner(family model.Family, protocol model.Protocol, addr netip.Addr, port uint16) *model.ServicePort {
	f := c.families.of(family)
	s := f.frontends[frontend{addr, port, protocol}]
	if s == nil {
		return nil
	}
	return s.claims[0].port
}

// EachFrontend calls do with the address and port of each frontend that a Service port claims. For a node port, addr is
// the zero value. A frontend comes twice if the Service port names its address twice.
func EachFrontend(p *model.ServicePort, do func(addr netip.Addr, port uint16)) {
	eachFrontend(p, func(_ rank, fe frontend) { do(fe.addr, fe.port) })
}

// NodePortPrefixes returns the prefixes on which node ports of a family answer: on those of the machine's own addresses
// that a prefix contains, except loopback addresses.
func (c *Compiler) NodePortPrefixes(family model.Family) []netip.Prefix {
	return c.families.of(family).nodePortPrefixes()
}
