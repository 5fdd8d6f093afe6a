package leftovers

import (
	"context"

	"github.com/nftproxy/nftproxy/nft"
)

// nftChains returns the names of the chains of a table of nf_tables.
func nftChains(ctx context.Context, t table) (names []string, err error) {
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	chains, err := retry(func() ([]*nft.Chain, error) { return conn.ReadChains(ctx, t.family, t.name) })
	for _, c := range chains {
		names = append(names, c.Name)
	}
	return names, err
}

// removeNFT removes chains of iptables-nft from tables in one transaction. It reads no others: while it reads, nobody else may
// commit.
func removeNFT(ctx context.Context, tables []table) (removal Removal, err error) {
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return Removal{}, err
	}
	defer conn.Close()
	return retry(func() (Removal, error) {
		tx, removal, err := plan(ctx, conn, tables)
		if err == nil {
			_, err = conn.Commit(ctx, tx)
		}
		if err != nil {
			return Removal{}, err
		}
		return removal, nil
	})
}

// plan returns the transaction that removes the leftovers from the rules as they are now: after any other change of the
// rules, the kernel refuses it.
func plan(ctx context.Context, conn *nft.Conn, tables []table) (tx nft.Transaction, removal Removal, err error) {
	if tx.Generation, err = conn.Generation(ctx); err != nil {
		return tx, removal, err
	}
	for _, of := range tables {
		t, err := conn.ReadTable(ctx, of.family, of.name)
		if err != nil {
			return tx, removal, err
		}
		if t != nil { // else it was deleted since
			removal.addTable(&tx, t)
		}
	}
	return tx, removal, nil
}

// addTable adds the chains of a table, and to tx the steps that remove them. A base chain stays, without its rules that
// lead to a removed chain.
func (r *Removal) addTable(tx *nft.Transaction, t *nft.Table) {
	var names []string
	for _, c := range t.Chains {
		if c.Hook == "" {
			names = append(names, c.Name)
		}
	}
	doomed := doomedChains(names, jumpsOf(t))
	r.add(table{t.Family, t.Name}, names, doomed)
	var flushes, deletions []nft.Step
	for _, c := range t.Chains {
		for i, rule := range c.Rules {
			if c.Hook != "" && doomed[destination(rule)] {
				tx.Steps = append(tx.Steps, nft.Step{Op: nft.DeleteRule, Table: t, Chain: c, Handle: t.Kernel.Handles[c.Name][i]})
			}
		}
		if doomed[c.Name] {
			flushes = append(flushes, nft.Step{Op: nft.FlushChain, Table: t, Chain: c})
			deletions = append(deletions, nft.Step{Op: nft.DeleteChain, Table: t, Chain: c})
		}
	}
	// Last: the kernel refuses to delete a chain while a rule leads to it.
	tx.Steps = append(append(tx.Steps, flushes...), deletions...)
}

// jumpsOf returns the rules of a table that jump or go to a chain.
func jumpsOf(t *nft.Table) (jumps []jump) {
	for _, c := range t.Chains {
		from := c.Name
		if c.Hook != "" {
			from = ""
		}
		for _, rule := range c.Rules {
			if to := destination(rule); to != "" {
				jumps = append(jumps, jump{from, to})
			}
		}
	}
	return jumps
}

// destination returns the chain that a rule jumps or goes to, empty if there is none. It does not know a rule that does
// so through a verdict map; if such a rule leads to a removed chain, the kernel refuses the transaction.
func destination(r nft.Rule) string {
	for _, s := range r.Statements {
		if v, is := s.(nft.Verdict); is && v.Chain != "" {
			return v.Chain
		}
	}
	return ""
}
