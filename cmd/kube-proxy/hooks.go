package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/health"
	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/internal/node"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
)

// sourceHooks are callbacks of a source.
type sourceHooks struct {
	onFailing    func(resource string, failing bool)
	onMissing    func(node.Missing)
	previousNode func() (model.Node, error)
	// guard decides about implausible lists.
	guard *model.ListGuard
}

func newSourceHooks(ctx context.Context, p *health.Proxy, conn *nft.Conn, guard *model.ListGuard, serviceProxyName string) sourceHooks {
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
		guard:        guard,
	}
}

// newListGuard returns the guard of a proxy. SIGUSR1 makes it believe the last lists.
func newListGuard(ctx context.Context, conn *nft.Conn) *model.ListGuard {
	guard := &model.ListGuard{
		Before: func(resource string, kubernetes bool) bool { return inForce(ctx, conn, resource, kubernetes) },
		OnHeld: func(resource, reason string) { metrics.SetLossesHeld(resource, reason != "") },
	}
	go believeOnSignal(ctx, guard)
	return guard
}

// believeOnSignal makes the guard believe the last lists on each SIGUSR1.
func believeOnSignal(ctx context.Context, guard *model.ListGuard) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			klog.FromContext(ctx).Info("SIGUSR1: believing the last lists", "held", guard.Believe())
		}
	}
}

// inForce reports whether the kernel has rules of an earlier kube-proxy, in any mode, for a resource; true if it cannot
// read the rules. If the list has default/kubernetes, rules for one address prove nothing.
func inForce(ctx context.Context, conn *nft.Conn, resource string, kubernetes bool) bool {
	look, addresses := proxy.HasServices, 1
	if resource == "endpointslices" {
		look = proxy.HasEndpoints
	}
	if kubernetes {
		addresses = 2
	}
	has, err := look(ctx, conn, addresses)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot read what the rules in the kernel have; taking it that they have some", "resource", resource)
		return true
	}
	return has || otherModes(ctx)
}

// otherModes reports whether rules of kube-proxy's other modes are in force.
func otherModes(ctx context.Context) bool {
	found, _ := leftovers.Find(ctx) // leftovers.Watch reports a failure
	return len(found) > 0
}

// previousNode returns the facts about the Node in the rules of an earlier kube-proxy.
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

// newServiceHealth returns the server of healthCheckNodePorts. It listens on the addresses of node ports.
func newServiceHealth(p *health.Proxy, c compiler.Config, events *node.Events) *health.Services {
	return health.NewServices(health.ServicesOptions{
		Ready:       p.Ready,
		Primary:     c.NodePortAddresses.Primary,
		CIDRs:       c.NodePortAddresses.CIDRs,
		OnListening: metrics.SetServiceHealthPorts,
		OnFailure:   events.ServiceHealthFailed,
	})
}

func observeFlows(family model.Family, stats conntrack.Stats, err error) {
	metrics.ObserveConntrack(family, stats.Duration, stats.Deleted)
	if err != nil {
		metrics.CountConntrackFailure(family)
	}
}

// hooks returns callbacks for the metrics of the backend. Tables that the backend cannot repair count as a waiting
// change.
func hooks(h *health.Proxy, events *node.Events) proxy.Hooks {
	all := proxy.Hooks{
		OnCommitting: h.Committing,
		OnCommit: func(stats nft.CommitStats) {
			metrics.ObserveCommit(stats)
			if stats.Elements >= manyElements {
				returnMemory(time.Second)
			}
		},
		OnCompile:        metrics.ObserveCompile,
		OnExternalChange: metrics.CountForeignChange,
		OnRepair:         metrics.CountRepair,
		OtherRules:       otherModes,
		OnContested: func(news []compiler.Conflict, all int) {
			metrics.SetContestedAddresses(all)
			for _, c := range news {
				for _, id := range c.Others {
					events.ServiceWarning(id.Namespace, id.Service, "AddressContested",
						fmt.Sprintf("port %q gets no packets to %s, which %s claims too and gets", id.Port, c.Frontend, c.Owner.ServicePortName()))
				}
			}
		},
		OnDiverged: func(yes bool) {
			metrics.SetDiverged(yes)
			if yes {
				h.Queued()
			} else {
				h.Synced()
			}
		},
	}
	limitForwarding(&all, events)
	return all
}

// manyElements is the size of a commit whose batch is megabytes of memory.
const manyElements = 10_000
