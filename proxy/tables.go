package proxy

import (
	"context"
	"slices"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
)

// Present returns the names of the tables that Cleanup would remove, such as "ip kube-proxy", sorted.
func Present(ctx context.Context, conn *nft.Conn) ([]string, error) {
	var tables []string
	for _, name := range []string{compiler.TableName, compiler.StandInName} {
		there, err := familiesWith(ctx, conn, name)
		if err != nil {
			return nil, err
		}
		for _, family := range there {
			tables = append(tables, family.String()+" "+name)
		}
	}
	slices.Sort(tables)
	return tables, nil
}

// Cleanup removes the tables of both families and the stand-ins in one transaction, whoever made them. It succeeds if
// there are none.
func Cleanup(ctx context.Context, conn *nft.Conn) error {
	var tx nft.Transaction
	for _, name := range []string{compiler.TableName, compiler.StandInName} {
		there, err := familiesWith(ctx, conn, name)
		if err != nil {
			return err
		}
		for _, family := range there {
			tx.Append(nft.Remove(family, name))
		}
	}
	_, err := conn.Commit(ctx, tx)
	return err
}

// familiesWith returns the families that have a table of that name.
func familiesWith(ctx context.Context, conn *nft.Conn, name string) (there []nft.Family, err error) {
	for _, family := range nft.Families {
		has, err := conn.HasTable(ctx, family, name)
		if err != nil {
			return nil, err
		}
		if has {
			there = append(there, family)
		}
	}
	return there, nil
}
