package leftovers

import (
	"context"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// nftChains returns the names of the chains that kube-proxy's other modes made with iptables-nft.
func nftChains(ctx context.Context) (names []string, err error) {
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	err = eachTable(ctx, conn, func(t table, chains []*nft.Chain) {
		for _, c := range chains {
			if isProxyChain(c.Name) {
				names = append(names, chainName(t.family, t.name, c.Name))
			}
		}
	})
	return names, err
}

// eachTable calls each with the chains of the tables in which kube-proxy may have some.
func eachTable(ctx context.Context, conn *nft.Conn, each func(table, []*nft.Chain)) error {
	for _, family := range nft.Families {
		for _, name := range iptablesTables {
			chains, err := retry(func() ([]*nft.Chain, error) { return conn.ReadChains(ctx, family, name) })
			if err != nil {
				return err
			}
			each(table{family, name}, chains)
		}
	}
	return nil
}

// removeNFT removes chains of iptables-nft in one transaction.
func removeNFT(ctx context.Context) (removal Removal, err error) {
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return Removal{}, err
	}
	defer conn.Close()
	tables, err := removableTables(ctx, conn)
	if err != nil {
		return Removal{}, err
	}
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

// table names a table of iptables-nft.
type table struct {
	family nft.Family
	name   string
}

// removableTables returns the tables with chains to remove. plan reads no others: while it reads, nobody else may commit.
func removableTables(ctx context.Context, conn *nft.Conn) (tables []table, err error) {
	err = eachTable(ctx, conn, func(t table, chains []*nft.Chain) {
		if slices.ContainsFunc(chains, func(c *nft.Chain) bool { return isRemovable(c.Name) }) {
			tables = append(tables, t)
		}
	})
	return tables, err
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
	r.add(t.Family, t.Name, names, doomed)
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
