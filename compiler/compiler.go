package compiler

import (
	"cmp"
	"fmt"
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
	if changes.Full {
		c.removeAllBut(changes.Ports)
	}
	c.applyCluster(changes)
	var conflicts []Conflict
	for i, f := range c.served() {
		if changes.Full && f.isNew() {
			conflicts = append(conflicts, f.applyFirst(changes.Ports)...)
		} else {
			for id, port := range changes.Ports {
				if familyIndex(id.Family) == i {
					f.setPort(id, port)
				}
			}
			conflicts = append(conflicts, f.reconcileTouched(f.putElements)...)
		}
		f.limitChainSets()
		f.updateUses()
	}
	slices.SortFunc(conflicts, func(a, b Conflict) int { return cmp.Compare(a.Frontend, b.Frontend) })
	return conflicts
}

// served returns the families that have a table.
func (c *Compiler) served() []*family {
	if c.config.IPv4Only {
		return c.families[:1]
	}
	return c.families[:]
}

// removeAllBut removes the ports that a full model does not name.
func (c *Compiler) removeAllBut(ports map[model.PortID]*model.ServicePort) {
	for _, f := range c.served() {
		for id := range f.ports {
			if ports[id] == nil {
				f.setPort(id, nil)
			}
		}
	}
}

func (c *Compiler) applyCluster(changes *model.Changes) {
	if changes.Node == nil && !changes.ServiceCIDRsChanged {
		return
	}
	for _, f := range c.served() {
		if changes.Node != nil {
			f.node = *changes.Node
		}
		if changes.ServiceCIDRsChanged {
			f.serviceCIDRs = changes.ServiceCIDRs
		}
		f.refresh()
	}
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

// Committed tells the compiler that the kernel now holds Tables. Call it after each successful commit of Transaction,
// before the next Apply.
func (c *Compiler) Committed() {
	for _, f := range c.served() {
		f.draft.Committed()
		f.affinityCommitted()
	}
}

// Invalidate tells the compiler that the kernel's tables are no longer known. The next Transaction replaces them.
func (c *Compiler) Invalidate() {
	for _, f := range c.served() {
		f.draft.Invalidate()
	}
}
