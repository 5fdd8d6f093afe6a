package compiler

import "github.com/nftproxy/nftproxy/nft"

// TemporaryName is the name of the tables that serve while another program's tables with the name TableName are
// replaced.
const TemporaryName = TableName + "-stand-in"

// TemporaryTables returns one table for each IP family. It serves the same Services as Tables while those are replaced.
// It has the chains that translate, with priorities after those of Tables, so that they translate only packets that no
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
func GuardsLast(tx nft.Transaction) (first, guards nft.Transaction) {
	for _, step := range tx.Steps {
		if step.Op == nft.AddElements && step.Set.Name == guardSet {
			guards.Steps = append(guards.Steps, step)
		} else {
			first.Steps = append(first.Steps, step)
		}
	}
	return first, guards
}
