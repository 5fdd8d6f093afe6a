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

// HasServices reports whether the tables hold Services, whoever made them: this proxy, or kube-proxy in its nftables
// mode. Both have each ClusterIP in a set.
func HasServices(ctx context.Context, conn *nft.Conn) (bool, error) {
	return hasElement(ctx, conn, compiler.ClusterIPs)
}

// HasEndpoints reports whether the tables hold endpoints. kube-proxy's have them in chains; they have an element in
// service-ips for each ClusterIP with endpoints.
func HasEndpoints(ctx context.Context, conn *nft.Conn) (bool, error) {
	return hasElement(ctx, conn, compiler.Endpoints, compiler.ServiceIPs)
}

// hasElement reports whether, in the table of any family, the first of the sets that exists has an element.
func hasElement(ctx context.Context, conn *nft.Conn, sets ...string) (bool, error) {
	for _, family := range nft.Families {
		for _, set := range sets {
			has, err := conn.HasElement(ctx, family, compiler.TableName, set)
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

// Cleanup removes the tables of both families and the temporary ones in one transaction, whoever made them: those of
// the proxy with a service-proxy-name, "" for the proxy without one. It succeeds if there are none.
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
