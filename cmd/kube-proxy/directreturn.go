package main

import (
	"context"
	"fmt"

	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/directreturn"
	"github.com/nftproxy/nftproxy/internal/directreturn/entrance"
	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/internal/node"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
)

// limitForwarding sets hooks that let direct return forward what this node may forward, and name the Service ports that ask
// for direct return in vain.
func limitForwarding(h *proxy.Hooks, events *node.Events) {
	here := entrance.New(func(obstacle string) {
		metrics.SetDirectReturnBlocked(obstacle != "")
		if obstacle != "" {
			events.NodeWarning("DirectReturnBlocked", "this node forwards nothing by direct return, and masquerades: "+obstacle)
		}
	})
	h.OnApplied = func(ctx context.Context, c *compiler.Compiler, changes *model.Changes) {
		here.Look(ctx, c, changes)
		nameDenied(ctx, c, events)
	}
	h.BeforeRefresh = here.Survey
	h.OnRefresh = func(ctx context.Context, c *compiler.Compiler) {
		here.Surveyed(ctx, c)
		nameDenied(ctx, c, events)
	}
}

func nameDenied(ctx context.Context, c *compiler.Compiler, events *node.Events) {
	denied, all := c.WithoutDirectReturn()
	metrics.SetDirectReturnDenied(all)
	var named []string
	for i, id := range denied {
		events.ServiceWarning(id.Namespace, id.Service, "DirectReturnDenied",
			fmt.Sprintf("port %q has no direct return, because of the limits of addresses and endpoints: its external clients are masqueraded", id.Port))
		if i < maxNamed {
			named = append(named, id.ServicePortName())
		}
	}
	if len(denied) > 0 {
		klog.FromContext(ctx).Info("Service ports ask for direct return and are masqueraded, because of the limits of addresses and endpoints",
			"servicePorts", named, "count", len(denied))
	}
}

// maxNamed bounds the names in a line of the log.
const maxNamed = 10

// nameDoubts logs what may lose packets that other nodes forward to this one. The start does not wait for the rules of
// other programs.
func nameDoubts(ctx context.Context, gates featuregate.FeatureGate, serviceProxyName string) {
	if !gates.Enabled(config.DirectReturn) {
		return
	}
	logger := klog.FromContext(ctx)
	if !directreturn.LittleEndian {
		logger.Info("Direct return: this machine is big-endian and computes other slots than other nodes; it serves as under policy Cluster")
	}
	go func() {
		others, err := leftovers.FindOthers(ctx, 0, compiler.TableNameFor(serviceProxyName))
		if err != nil && ctx.Err() == nil {
			logger.Info("Direct return: cannot read all rules of other programs", "reason", err.Error())
		}
		doubts, err := entrance.Doubts(others.DropsAt(nft.HookOutput))
		if err != nil {
			logger.Info("Direct return: cannot compare the MTUs of interfaces", "reason", err.Error())
		}
		for _, d := range doubts {
			logger.Info("Direct return: packets may be lost", "reason", d.What, "names", d.Names[:min(len(d.Names), maxNamed)], "count", len(d.Names),
				"effect", d.Why, "advice", d.Advice)
		}
	}()
}
