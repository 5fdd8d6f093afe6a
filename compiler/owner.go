package compiler

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
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
func (c *Compiler) EachFrontend(p *model.ServicePort, do func(addr netip.Addr, port uint16)) {
	eachFrontend(p, func(_ rank, fe frontend) { do(fe.addr, fe.port) })
}

// FormerFrontends returns the addresses and ports of a protocol whose elements a transaction deletes and that no Service
// port claims, each by its family. For a node port, the address is the zero value. One may come several times.
func (c *Compiler) FormerFrontends(tx nft.Transaction, protocol model.Protocol) iter.Seq2[model.Family, netip.AddrPort] {
	return func(yield func(model.Family, netip.AddrPort) bool) {
		for _, step := range tx.Steps {
			if step.Op != nft.DeleteElements {
				continue
			}
			i := slices.Index(nft.Families[:], step.Table.Family)
			for e := range step.EachElement() {
				fe, ok := c.families[i].frontendIn(step.Set, e.Key)
				if ok && fe.protocol == protocol && c.families[i].frontends[fe] == nil && !yield(model.Families[i], netip.AddrPortFrom(fe.addr, fe.port)) {
					return
				}
			}
		}
	}
}

// frontendIn returns the frontend with which the key of a set begins; false if the set's keys do not begin with one.
func (f *family) frontendIn(set *nft.Set, key nft.Data) (frontend, bool) {
	for _, nodePort := range []bool{false, true} {
		fields := f.key(nodePort)
		if length := fields.Len(); len(set.Key) >= len(fields) && slices.Equal(set.Key[:len(fields)], fields) && len(key) >= length {
			return parseKey(key[:length])
		}
	}
	return frontend{}, false
}

// NodePortPrefixes returns the prefixes on which node ports of a family answer: on those of the machine's own addresses
// that a prefix contains, except loopback addresses.
func (c *Compiler) NodePortPrefixes(family model.Family) []netip.Prefix {
	return c.families.of(family).nodePortPrefixes()
}
