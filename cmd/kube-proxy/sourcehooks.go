package main

import (
	"context"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/health"
	"github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/internal/node"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// sourceHooks is what a source is given by those who want to know how it fares, and what it may ask.
type sourceHooks struct {
	onFailing    func(resource string, failing bool)
	onMissing    func(node.Missing)
	previousNode func() (model.Node, error)
}

func newSourceHooks(ctx context.Context, p *health.Proxy, conn *nft.Conn) sourceHooks {
	return sourceHooks{
		onFailing: func(resource string, failing bool) {
			p.SetFailing(resource, failing)
			metrics.SetWatchFailing(resource, failing)
		},
		onMissing: func(m node.Missing) {
			p.AwaitNode(m.Waiting)
			metrics.SetNodeMissing(m.Node, m.Addresses, m.PodCIDRs)
		},
		previousNode: func() (model.Node, error) { return previousNode(ctx, conn) },
	}
}

// previousNode returns the Node as far as the rules in the kernel tell it: those of the previous run, or of the
// kube-proxy that ran before.
func previousNode(ctx context.Context, conn *nft.Conn) (model.Node, error) {
	var tables []*nft.Table
	for _, family := range nft.Families {
		table, err := conn.ReadTable(ctx, family, compiler.TableName)
		if err != nil {
			return model.Node{}, err
		}
		tables = append(tables, table)
	}
	return compiler.NodeFromTables(tables...), nil
}
