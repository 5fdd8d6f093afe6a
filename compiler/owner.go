package compiler

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
)

// Owner returns the Service port to which packets for an address and port go, or, with an
// address that is not valid, packets for a node port. It returns nil when no Service port
// claims them.
func (c *Compiler) Owner(family model.Family, protocol model.Protocol, addr netip.Addr, port uint16) *model.ServicePort {
	f := c.families.of(family)
	s := f.frontends[frontend{addr, port, protocol}]
	if s == nil {
		return nil
	}
	return s.claims[0].port
}

// EachFrontend calls do with the address and port of each frontend that a Service port claims. As for Owner, a node
// port has an address that is not valid. A frontend comes twice if the Service port names its address twice.
func EachFrontend(p *model.ServicePort, do func(addr netip.Addr, port uint16)) {
	eachFrontend(p, func(_ rank, fe frontend) { do(fe.addr, fe.port) })
}

// NodePortPrefixes returns where node ports of a family answer: on those of the node's own
// addresses that the prefixes contain. Loopback addresses are never among them.
func (c *Compiler) NodePortPrefixes(family model.Family) []netip.Prefix {
	return c.families.of(family).nodePortPrefixes()
}
