package compiler

import (
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// TemporaryName is the name of the tables that serve while another program's tables with the name TableName are
// replaced.
const TemporaryName = TableName + "-stand-in"

// TemporaryTables returns one table for each IP family. It serves the same Services as Tables while Tables are
// replaced. It has the chains that translate, with priorities after the chains of Tables, so that they translate only packets that no
// other table has translated. It also has the chains that guard load balancer addresses.
func (c *Compiler) TemporaryTables() (tables []*nft.Table) {
	for _, table := range c.Tables() {
		t := *table
		t.Name, t.Chains = TemporaryNameFor(c.config.ServiceProxyName), nil
		for _, chain := range table.Chains {
			c := *chain
			if c.Type == nft.TypeNAT {
				c.Priority += 2
			}
			if c.Type != nft.TypeFilter || c.Priority <= nft.PriorityDstNAT {
				t.Chains = append(t.Chains, &c)
			}
		}
		tables = append(tables, &t)
	}
	return tables
}

// GuardsLast splits a transaction in two, to be committed one after the other. The second one adds the load balancer
// addresses to guard. The kernel makes elements of sets with ranges valid at the very end of a commit. So in a single
// commit, a guarded address would drop everybody until the ranges of its sources are valid.
func GuardsLast(tx nft.Transaction) (first, guards nft.Transaction) { return split(tx, guardSet) }

// ServicesLast is GuardsLast for tables that are not there yet, while other rules serve. The second transaction adds
// the addresses of Services too, so none is served without its guard.
func ServicesLast(tx nft.Transaction) (first, services nft.Transaction) {
	return split(tx, guardSet, ServiceIPs)
}

// split moves the elements of some sets to a second transaction.
func split(tx nft.Transaction, sets ...string) (first, second nft.Transaction) {
	for _, step := range tx.Steps {
		if step.Op == nft.AddElements && slices.Contains(sets, step.Set.Name) {
			second.Steps = append(second.Steps, step)
		} else {
			first.Steps = append(first.Steps, step)
		}
	}
	return first, second
}
