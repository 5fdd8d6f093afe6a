package compiler

import "github.com/nftproxy/nftproxy/nft"

// StandInName is the name of the tables that serve while another program's tables of TableName are replaced.
const StandInName = TableName + "-stand-in"

// StandIns returns one table for each IP family that serves what Tables serve while those are replaced: the chains
// that translate, at the end of their hooks, so that they translate only what no other table has, and the chains that
// guard load balancer addresses.
func (c *Compiler) StandIns() []*nft.Table {
	var tables []*nft.Table
	for _, table := range c.Tables() {
		tables = append(tables, standIn(table))
	}
	return tables
}

func standIn(table *nft.Table) *nft.Table {
	s := *table
	s.Name, s.Chains = StandInName, nil
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

// GuardsLast splits a transaction in two, to be committed one after the other. The second one guards load balancer
// addresses. The kernel makes elements of sets with ranges valid last in a commit: with
// all in one commit, a new guard would let nobody in until the ranges of its sources are valid.
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
