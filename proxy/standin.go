package proxy

import (
	"errors"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

// standInName is the name of the tables that serve while another program's are replaced.
const standInName = compiler.TableName + "-stand-in"

// inFlight is longer than a packet needs for its way through the rules of one hook.
const inFlight = 20 * time.Millisecond

// takeOver replaces tables that are another program's, or of another version of this one. For that long there are
// stand-ins, since two things go wrong at that instant:
//
//   - A packet that is on its way through the old rules finds their maps empty. The stand-ins' NAT chains come after
//     all others and translate what those did not.
//   - The kernel makes elements of sets with ranges valid last. Load balancer addresses with source ranges would let
//     nobody in until then. So the stand-ins guard them until the ranges hold in the new tables.
func (b *Backend) takeOver(logger klog.Logger) error {
	there, err := b.tablesThere(compiler.TableName)
	if err != nil || len(there) == 0 {
		return b.replace(logger)
	}
	if err := b.guardLast(b.standIns(), b.carryOut); err != nil {
		logger.Info("Replacing the tables without stand-ins", "reason", err.Error())
		return b.replace(logger)
	}
	time.Sleep(inFlight)
	if err := b.replaceBy(logger, func(tx nft.Transaction) error { return b.guardLast(tx, b.send) }); err != nil {
		return errors.Join(err, b.removeStandIns())
	}
	time.Sleep(inFlight)
	return nil
}

// guardLast carries out a transaction, but for what makes load balancer addresses guarded, and then has
// end carry out that.
func (b *Backend) guardLast(tx nft.Transaction, end func(nft.Transaction) error) error {
	var first, last nft.Transaction
	for _, step := range tx.Steps {
		if step.Op == nft.AddElements && step.Set.Name == compiler.GuardSet {
			last.Steps = append(last.Steps, step)
		} else {
			first.Steps = append(first.Steps, step)
		}
	}
	if err := b.carryOut(first); err != nil {
		return err
	}
	return end(last)
}

// tablesThere returns the families that have a table of that name.
func (b *Backend) tablesThere(name string) (there []nft.Family, err error) {
	for _, family := range nft.Families {
		has, err := b.conn.HasTable(family, name)
		if err != nil {
			return nil, err
		}
		if has {
			there = append(there, family)
		}
	}
	return there, nil
}

func (b *Backend) standIns() (tx nft.Transaction) {
	for _, table := range b.compiler.Tables() {
		tx.Append(nft.Replace(standIn(table)))
	}
	return tx
}

// standIn is a table with only what guards addresses and what translates them, the latter where it runs last.
func standIn(table *nft.Table) *nft.Table {
	s := *table
	s.Name, s.Chains = standInName, nil
	for _, chain := range table.Chains {
		if chain.Type == nft.TypeFilter && chain.Priority > nft.PriorityDstNAT {
			continue
		}
		c := *chain
		if c.Type == nft.TypeNAT {
			c.Priority += 2
		}
		s.Chains = append(s.Chains, &c)
	}
	return &s
}

// removeStandIns also removes those of a process that did not come to it.
func (b *Backend) removeStandIns() error {
	there, err := b.tablesThere(standInName)
	if err != nil {
		return err
	}
	var tx nft.Transaction
	for _, family := range there {
		tx.Append(nft.Remove(family, standInName))
	}
	return b.carryOut(tx)
}
