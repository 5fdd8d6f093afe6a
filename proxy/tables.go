package proxy

import (
	"context"
	"errors"
	"slices"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// Present returns the names of the tables that Cleanup would remove, such as "ip kube-proxy", sorted.
func Present(ctx context.Context, conn *nft.Conn, serviceProxyName string) ([]string, error) {
	tx, err := removal(ctx, conn, compiler.TableNameFor(serviceProxyName), compiler.TemporaryNameFor(serviceProxyName))
	var tables []string
	for _, step := range tx.Steps {
		tables = append(tables, step.Table.Family.String()+" "+step.Table.Name)
	}
	slices.Sort(tables)
	return tables, err
}

// HasServices reports whether the tables hold Services of at least so many addresses. The tables are this proxy's, or
// kube-proxy's in its nftables mode. Both have each ClusterIP in a set.
func HasServices(ctx context.Context, conn *nft.Conn, addresses int) (bool, error) {
	return hasAddresses(ctx, conn, addresses, compiler.ClusterIPs)
}

// HasEndpoints reports whether the tables hold endpoints of at least so many addresses. kube-proxy's tables have endpoints in
// chains, and an element in service-ips for each ClusterIP with endpoints.
func HasEndpoints(ctx context.Context, conn *nft.Conn, addresses int) (bool, error) {
	return hasAddresses(ctx, conn, addresses, compiler.Endpoints, compiler.ServiceIPs)
}

// hasAddresses reports whether the elements of the sets, in the tables of both families, begin with enough different
// addresses. In each table only the first existing set counts.
func hasAddresses(ctx context.Context, conn *nft.Conn, enough int, sets ...string) (bool, error) {
	seen := map[string]bool{}
	for _, family := range nft.Families {
		length := nft.Concat{family.Daddr()}.Len()
		address := func(e nft.Element) bool {
			seen[string(e.Key[:min(len(e.Key), length)])] = true
			return len(seen) >= enough
		}
		for _, set := range sets {
			has, err := conn.HasElement(ctx, family, compiler.TableName, set, address)
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			if has || err != nil {
				return has, err
			}
			break
		}
	}
	return false, nil
}

// Cleanup removes, in one transaction, the tables of both families and the temporary tables that a proxy with this
// service-proxy-name ("" for none) or another program with these names made. It succeeds if there are none.
func Cleanup(ctx context.Context, conn *nft.Conn, serviceProxyName string) error {
	tx, err := removal(ctx, conn, compiler.TableNameFor(serviceProxyName), compiler.TemporaryNameFor(serviceProxyName))
	if err != nil {
		return err
	}
	_, err = conn.Commit(ctx, tx)
	return err
}

func removal(ctx context.Context, conn *nft.Conn, names ...string) (tx nft.Transaction, err error) {
	for _, name := range names {
		there, err := familiesWith(ctx, conn, name)
		if err != nil {
			return nft.Transaction{}, err
		}
		for _, family := range there {
			tx.Append(nft.Remove(family, name))
		}
	}
	return tx, nil
}

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
