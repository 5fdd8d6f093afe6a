package compiler

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// Compiler keeps the rulesets of both families in line with the model. The cost of a
// change is in proportion to the Service ports in it. It is not safe for concurrent use.
type Compiler struct {
	config   Config
	families [2]*family
}

// New returns a compiler for an empty model.
func New(config Config) (*Compiler, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("compiler: %w", err)
	}
	c := &Compiler{config: config}
	c.reset()
	return c, nil
}

func (c *Compiler) reset() {
	c.families = [2]*family{newFamily(nft.FamilyIP, &c.config), newFamily(nft.FamilyIP6, &c.config)}
}

// Conflict is a frontend that more than one Service port claims. The Owner has it; the
// others are served on their other addresses only.
type Conflict struct {
	// Frontend is the address, such as "203.0.113.1:80/TCP".
	Frontend string
	Owner    model.PortID
	Others   []model.PortID
}

// Apply takes changes of the model into the rulesets and returns the conflicts that are new or
// have other claimants than before, sorted by frontend. An owner who changes because endpoints
// come and go does not make a conflict new. Applying the same changes again changes nothing.
func (c *Compiler) Apply(changes *model.Changes) []Conflict {
	touched := [2]map[frontend]bool{{}, {}}
	if changes.Full {
		c.dropAllBut(changes.Ports, &touched)
	}
	c.applyCluster(changes)
	for id, port := range changes.Ports {
		i := familyIndex(id.Family)
		c.families[i].setPort(id, port, touched[i])
	}
	var conflicts []Conflict
	for i, f := range c.families {
		for fe := range touched[i] {
			f.settle(fe)
			conflicts = append(conflicts, f.newConflict(fe)...)
		}
	}
	slices.SortFunc(conflicts, func(a, b Conflict) int { return cmp.Compare(a.Frontend, b.Frontend) })
	return conflicts
}

func familyIndex(f model.Family) int {
	if f == model.IPv6 {
		return 1
	}
	return 0
}

// dropAllBut removes the ports that a full model does not name.
func (c *Compiler) dropAllBut(ports map[model.PortID]*model.ServicePort, touched *[2]map[frontend]bool) {
	for i, f := range c.families {
		for id := range f.ports {
			if ports[id] == nil {
				f.setPort(id, nil, touched[i])
			}
		}
	}
}

func (c *Compiler) applyCluster(changes *model.Changes) {
	if changes.Node == nil && !changes.ServiceCIDRsChanged {
		return
	}
	for _, f := range c.families {
		if changes.Node != nil {
			f.node = *changes.Node
		}
		if changes.ServiceCIDRsChanged {
			f.serviceCIDRs = changes.ServiceCIDRs
		}
		f.refreshChains()
		f.resettleGuarded()
	}
}

// newConflict returns the conflict over a frontend if its claimants are not those of the last call.
func (f *family) newConflict(fe frontend) []Conflict {
	list := f.claims[fe]
	if len(list) < 2 {
		delete(f.contested, fe)
		return nil
	}
	c := Conflict{Frontend: fe.String(), Owner: list[0].id}
	for _, other := range list[1:] {
		c.Others = append(c.Others, other.id)
	}
	claimants := slices.SortedFunc(slices.Values(append(c.Others, c.Owner)), model.PortID.Compare)
	if slices.Equal(f.contested[fe], claimants) {
		return nil
	}
	f.contested[fe] = claimants
	return []Conflict{c}
}

// Tables returns the rulesets as they are wanted now, IPv4 first. They are valid until the
// next Apply and must not be modified.
func (c *Compiler) Tables() []*nft.Table {
	return []*nft.Table{c.families[0].draft.Table(), c.families[1].draft.Table()}
}

// Transaction returns what brings the kernel from the last commit to Tables, for both
// families at once. It is empty when nothing changed.
func (c *Compiler) Transaction() nft.Transaction {
	var tx nft.Transaction
	for _, f := range c.families {
		tx.Append(f.draft.Transaction())
	}
	return tx
}

// Committed says that the kernel now holds Tables.
func (c *Compiler) Committed() {
	for _, f := range c.families {
		f.draft.Committed()
		f.affinityCommitted()
	}
}

// Invalidate says that what the kernel holds is not known any more, so that the next
// Transaction replaces both tables.
func (c *Compiler) Invalidate() {
	for _, f := range c.families {
		f.draft.Invalidate()
	}
}
