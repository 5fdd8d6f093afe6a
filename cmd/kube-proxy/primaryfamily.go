package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
)

// warnOfPrimaryFamily looks at the node when it changed; nil says that it did not.
func (p *parts) warnOfPrimaryFamily(ctx context.Context, node *model.Node) {
	if node == nil {
		return
	}
	if warning := missingPrimaryFamily(p.detectLocal, node); warning != "" {
		klog.FromContext(ctx).Info("Configuration warning", "warning", warning)
	}
}

// missingPrimaryFamily returns a warning if the ranges of the cluster's pods have none of the node's primary IP family,
// as kube-proxy gives one; empty if they do, or if there are none at all, which is warned about elsewhere.
func missingPrimaryFamily(local compiler.DetectLocal, node *model.Node) string {
	ranges, of := local.CIDRs, "clusterCIDR"
	if local.NodePodCIDRs {
		ranges, of = node.PodCIDRs, "the Node's podCIDRs"
	}
	if len(ranges) == 0 || len(node.IPs) == 0 {
		return ""
	}
	family := model.FamilyOf(node.IPs[0])
	if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return model.FamilyOf(p.Addr()) == family }) {
		return ""
	}
	return fmt.Sprintf("%s: no range of %s, the primary IP family of node %s: its pods cannot be told from other clients", of, family, node.Name)
}
