package leftovers

import (
	"context"
	"fmt"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// Removal is the result of Remove.
type Removal struct {
	// Removed are the chains that are gone, as in Leftover.Example.
	Removed []string
	// Kept are chains of kube-proxy that stay, because a chain of another program leads to them.
	Kept []string
}

// Remove removes the chains that kube-proxy's other modes made with iptables-nft, and the rules of the
// tables' base chains that lead to them, in one transaction: packets see all of them or none. The rules of other programs,
// among them the kubelet's, and the tables themselves stay. It removes nothing from iptables-legacy and IPVS.
func Remove(ctx context.Context) (Removal, error) {
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return Removal{}, err
	}
	defer conn.Close()
	tables, err := removableTables(ctx, conn)
	if err != nil {
		return Removal{}, fmt.Errorf("look for what %s left: %w", NFT, err)
	}
	removal, err := retry(func() (Removal, error) {
		tx, removal, err := plan(ctx, conn, tables)
		if err == nil {
			_, err = conn.Commit(ctx, tx)
		}
		return removal, err
	})
	if err != nil {
		return Removal{}, fmt.Errorf("remove what %s left: %w", NFT, err)
	}
	return removal, nil
}

// table names a table of iptables-nft.
type table struct {
	family nft.Family
	name   string
}

// removableTables returns the tables with chains to remove. plan reads no others: while it reads, nobody else may commit.
func removableTables(ctx context.Context, conn *nft.Conn) (tables []table, err error) {
	for _, family := range nft.Families {
		for _, name := range iptablesTables {
			chains, err := retry(func() ([]*nft.Chain, error) { return conn.ReadChains(ctx, family, name) })
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(chains, func(c *nft.Chain) bool { return isRemovable(c.Name) }) {
				tables = append(tables, table{family, name})
			}
		}
	}
	return tables, nil
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
	jumps := jumpsOf(t)
	doomed := doomedChains(t.Chains, jumps)
	for _, j := range jumps {
		if j.from.Hook != "" && doomed[j.to] {
			tx.Steps = append(tx.Steps, nft.Step{Op: nft.DeleteRule, Table: t, Chain: j.from, Handle: j.handle})
		}
	}
	var deletions []nft.Step
	for _, c := range t.Chains {
		name := chainName(t.Family, t.Name, c.Name)
		switch {
		case doomed[c.Name]:
			r.Removed = append(r.Removed, name)
			tx.Steps = append(tx.Steps, nft.Step{Op: nft.FlushChain, Table: t, Chain: c})
			deletions = append(deletions, nft.Step{Op: nft.DeleteChain, Table: t, Chain: c})
		case isRemovable(c.Name):
			r.Kept = append(r.Kept, name)
		}
	}
	// Last: the kernel refuses to delete a chain while a rule leads to it.
	tx.Steps = append(tx.Steps, deletions...)
}

// jump is a rule that leads to another chain.
type jump struct {
	from   *nft.Chain
	to     string
	handle uint64
}

// jumpsOf returns the rules of a table that jump or go to a chain. A rule that does so through a verdict map is not among
// them; if it leads to a removed chain, the kernel refuses the transaction.
func jumpsOf(t *nft.Table) (jumps []jump) {
	for _, c := range t.Chains {
		for i, r := range c.Rules {
			for _, s := range r.Statements {
				if v, is := s.(nft.Verdict); is && v.Chain != "" {
					jumps = append(jumps, jump{from: c, to: v.Chain, handle: t.Kernel.Handles[c.Name][i]})
				}
			}
		}
	}
	return jumps
}

// doomedChains returns the chains to remove. It keeps a chain if a chain of another program leads to it, and then all
// chains that it leads to itself. Base chains do not count as another program's: a rule that leads from there to
// kube-proxy's chains is kube-proxy's own.
func doomedChains(chains []*nft.Chain, jumps []jump) (doomed map[string]bool) {
	doomed = map[string]bool{}
	for _, c := range chains {
		doomed[c.Name] = isRemovable(c.Name) && c.Hook == ""
	}
	for changed := true; changed; {
		changed = false
		keep := func(name string) {
			changed = changed || doomed[name]
			doomed[name] = false
		}
		for _, j := range jumps {
			if j.from.Hook == "" && !doomed[j.from.Name] {
				keep(j.to)
			}
		}
		if mark, exists := doomed[markChain]; exists && !mark {
			keep(postroutingChain) // it masquerades the packets that the other marks
		}
	}
	return doomed
}
