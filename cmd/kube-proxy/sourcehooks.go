package main

import (
	"context"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/health"
	"github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/internal/node"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
	"k8s.io/klog/v2"
)

// sourceHooks is what a source is given by those who want to know how it fares, and what it may ask.
type sourceHooks struct {
	onFailing    func(resource string, failing bool)
	onMissing    func(node.Missing)
	previousNode func() (model.Node, error)
	// empty decides about a state without Services.
	empty model.EmptyGuard
}

func newSourceHooks(ctx context.Context, p *health.Proxy, conn *nft.Conn, serviceProxyName string) sourceHooks {
	return sourceHooks{
		onFailing: func(resource string, failing bool) {
			p.SetFailing(resource, failing)
			metrics.SetWatchFailing(resource, failing)
		},
		onMissing: func(m node.Missing) {
			p.AwaitNode(m.Waiting)
			metrics.SetNodeMissing(m.Node, m.Addresses, m.PodCIDRs)
		},
		previousNode: func() (model.Node, error) { return previousNode(ctx, conn, serviceProxyName) },
		empty: model.EmptyGuard{
			Off:    serviceProxyName != "",
			Before: func(resource string) bool { return inForce(ctx, conn, resource) },
			OnHeld: func(resource, reason string) {
				p.SetHeld(resource, reason)
				metrics.SetEmptyHeld(resource, reason != "")
			},
		},
	}
}

// inForce reports whether the rules of the previous run, or of the kube-proxy that ran before, have a resource. If they
// cannot be read, it says so.
func inForce(ctx context.Context, conn *nft.Conn, resource string) bool {
	look := proxy.HasServices
	if resource == "endpointslices" {
		look = proxy.HasEndpoints
	}
	has, err := look(ctx, conn)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot read what the rules in the kernel have; taking it that they have some", "resource", resource)
		return true
	}
	return has
}

// previousNode returns the Node as far as the rules in the kernel tell it: those of the previous run, or of the
// kube-proxy that ran before.
func previousNode(ctx context.Context, conn *nft.Conn, serviceProxyName string) (model.Node, error) {
	var tables []*nft.Table
	for _, family := range nft.Families {
		table, err := conn.ReadTable(ctx, family, compiler.TableNameFor(serviceProxyName))
		if err != nil {
			return model.Node{}, err
		}
		tables = append(tables, table)
	}
	return compiler.NodeFromTables(tables...), nil
}
