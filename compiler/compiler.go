package compiler

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// Compiler holds the rulesets of both families and updates them after changes of the model. A change takes time in
// proportion to the Service ports in it; a change of the node or of ServiceCIDRs, in proportion to the number of chains
// and frontends. A Compiler is not safe for concurrent use. Its methods panic if they are given a model.Family that is
// neither IPv4 nor IPv6.
type Compiler struct {
	config   Config
	families families
}

// New returns a compiler for an empty model. The error is that of Config.Validate.
func New(config Config) (*Compiler, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("compiler: %w", err)
	}
	c := &Compiler{config: config}
	for i, family := range nft.Families {
		c.families[i] = newFamily(family, &c.config)
	}
	return c, nil
}

// Apply updates the rulesets after changes of the model. It returns the conflicts that are new or have other claimants
// than before, sorted by frontend. A conflict with a new owner but the same claimants is not returned again: endpoints
// come and go. Applying the same changes again changes nothing.
//
// The Compiler keeps the ServicePorts and their lists. They must not be modified afterwards.
func (c *Compiler) Apply(changes *model.Changes) []Conflict {
	var conflicts []Conflict
	for _, f := range c.served() {
		f.setCluster(changes)
		conflicts = append(conflicts, f.apply(changes)...)
	}
	slices.SortFunc(conflicts, func(a, b Conflict) int { return cmp.Compare(a.Frontend, b.Frontend) })
	return conflicts
}

// Contested returns the number of frontends that more than one Service port claims now. A node port counts for each IP
// family.
func (c *Compiler) Contested() (n int) {
	for _, f := range c.served() {
		n += len(f.claims.contested)
	}
	return n
}

func (c *Compiler) served() []*family {
	if c.config.IPv4Only {
		return c.families[:1]
	}
	return c.families[:]
}

// Tables returns the wanted rulesets, IPv4 first. They are valid until the next Apply and must not be modified.
func (c *Compiler) Tables() []*nft.Table {
	var tables []*nft.Table
	for _, f := range c.served() {
		tables = append(tables, f.draft.Table())
	}
	return tables
}

// Transaction returns the difference between the last commit and Tables, for all families. It is empty if nothing
// changed. Before the first Committed and after Invalidate it replaces the tables.
func (c *Compiler) Transaction() nft.Transaction {
	var tx nft.Transaction
	for _, f := range c.served() {
		tx.Append(f.draft.Transaction())
	}
	return tx
}

// Committed notes that the kernel now holds Tables. Call it after each successful commit of Transaction,
// before the next Apply.
func (c *Compiler) Committed() {
	for _, f := range c.served() {
		f.draft.Committed()
		f.clientMaps.committed()
	}
}

// Invalidate notes that the kernel's tables are no longer known. The next Transaction replaces them.
func (c *Compiler) Invalidate() {
	for _, f := range c.served() {
		f.draft.Invalidate()
	}
}

// Owner returns the Service port that serves an address and port, or, if addr is the zero value, a node port. It
// returns nil if no Service port claims them.
func (c *Compiler) Owner(family model.Family, protocol model.Protocol, addr netip.Addr, port uint16) *model.ServicePort {
	s := c.families.get(family).claims.frontends[frontend{addr, port, protocol}]
	if s == nil {
		return nil
	}
	return s.claims[0].port.ServicePort
}

// FormerFrontends returns the addresses and ports of a protocol whose elements a transaction deletes and that no
// Service port claims, each by its family. For a node port, the address is the zero value. It may repeat a frontend.
func (c *Compiler) FormerFrontends(tx nft.Transaction, protocol model.Protocol) iter.Seq2[model.Family, netip.AddrPort] {
	return func(yield func(model.Family, netip.AddrPort) bool) {
		for _, step := range tx.Steps {
			if step.Op != nft.DeleteElements {
				continue
			}
			i := slices.Index(nft.Families[:], step.Table.Family)
			f := c.families[i]
			for e := range step.EachElement() {
				fe, ok := f.program.frontendIn(step.Set, e.Key)
				if ok && fe.protocol == protocol && f.claims.frontends[fe] == nil &&
					!yield(model.Families[i], netip.AddrPortFrom(fe.addr, fe.port)) {
					return
				}
			}
		}
	}
}

// frontendIn returns the frontend with which the key of a set begins; false if the set's keys do not begin with one.
func (p *program) frontendIn(set *nft.Set, key nft.Data) (frontend, bool) {
	for _, nodePort := range []bool{false, true} {
		fields := p.key(nodePort)
		if len(set.Key) >= len(fields) && slices.Equal(set.Key[:len(fields)], fields) && len(key) >= fields.Len() {
			return parseKey(key[:fields.Len()])
		}
	}
	return frontend{}, false
}

// NodePortPrefixes returns the prefixes of a family on which node ports answer: on each of the machine's own addresses
// that a prefix contains, except loopback addresses.
func (c *Compiler) NodePortPrefixes(family model.Family) []netip.Prefix {
	return c.families.get(family).program.nodePortPrefixes()
}

// families holds both IP families, in the order of model.Families.
type families [len(model.Families)]*family

func (fs *families) get(f model.Family) *family { return fs[familyIndex(f)] }

// familyIndex returns the index of a family in families. An invalid family makes the caller panic: rules in the other
// family's table would be wrong silently.
func familyIndex(f model.Family) int { return slices.Index(model.Families[:], f) }

func nftFamily(f model.Family) nft.Family { return nft.Families[familyIndex(f)] }
