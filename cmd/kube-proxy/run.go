package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/health"
	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/internal/localnodeport"
	"github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/internal/node"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nodelocal"
	"github.com/nftproxy/nftproxy/proxy"
	"github.com/nftproxy/nftproxy/sysctl"
	"github.com/nftproxy/nftproxy/tracker"
)

// signalContext ends on SIGTERM or SIGINT; a second one kills the process.
func signalContext() context.Context {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)
	return ctx
}

func run(ctx context.Context, o *options) error {
	compilerConfig, err := o.compiler()
	if err != nil {
		return err
	}
	compilerConfig.IPv4Only = !sysctl.Tree{}.KernelHasIPv6()
	// Not closed: Close would wait for an abandoned sync, and the kernel closes the connection with the process.
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return err
	}
	p, err := newParts(ctx, o, compilerConfig, conn)
	if err != nil {
		return err
	}
	setOOMScore(ctx, o.config)
	missing, err := prepareKernel(ctx, o, conn)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		go sysctl.Tree{}.AwaitConntrack(ctx, (*kubeproxyv1alpha1.KubeProxyConntrackConfiguration)(&o.config.Linux.Conntrack))
	}
	klog.FromContext(ctx).Info("Starting", "node", p.nodeName, "mode", "nftables")
	p.events.Starting()
	return p.serve(ctx, o)
}

// parts are the parts of a running proxy.
type parts struct {
	nodeName string
	// source feeds tracker. Both are nil if Services come from a node-local server.
	source  tracker.Source
	tracker *tracker.Tracker
	// client and remote are nil unless Services come from a node-local server.
	client  *nodelocal.Client
	remote  *node.Remote
	loop    *model.Loop
	backend *proxy.Backend
	flows   *conntrack.Cleaner
	// counts is nil unless Services are counted.
	counts *metrics.ServiceCounts
	// events is nil without an API server.
	events *node.Events

	health     *health.Proxy
	services   *health.Services
	localhosts *localnodeport.Forwarder

	// detectLocal distinguishes pods from other clients.
	detectLocal compiler.DetectLocal
	// applied is closed when a sync has succeeded.
	applied chan struct{}
}

func newParts(ctx context.Context, o *options, compilerConfig compiler.Config, conn *nft.Conn) (p *parts, err error) {
	p = &parts{detectLocal: compilerConfig.DetectLocal, applied: make(chan struct{})}
	guard := newListGuard(ctx, conn)
	p.health = health.NewProxy(health.Options{
		Timeout: 2 * o.config.SyncPeriod.Duration, Held: guard.Held, OnHealthz: metrics.CountHealthz, OnLivez: metrics.CountLivez,
	})
	if p.nodeName, err = o.nodeName(); err != nil {
		return nil, err
	}
	if p.events, err = o.events(ctx, p.nodeName); err != nil {
		return nil, err
	}
	if p.backend, err = proxy.NewBackend(conn, compilerConfig, hooks(p.health, p.events)); err != nil {
		return nil, err
	}
	if p.flows, err = conntrack.NewCleaner(conntrack.CleanerOptions{Logger: klog.FromContext(ctx), OnSearch: observeFlows}); err != nil {
		return nil, err
	}
	p.backend.RemoveStaleFlows(p.flows)
	metrics.ShowConntrack(p.flows.Conn())
	if compilerConfig.CountServices || compilerConfig.CountRefused {
		p.counts = metrics.NewServiceCounts(conn, p.backend.View)
		metrics.ShowServiceCounts(p.counts)
	}
	p.services = newServiceHealth(p.health, compilerConfig, p.events)
	p.localhosts = localnodeport.New(localnodeport.Options{
		Addresses:       localnodeport.Addresses(config.LoopbackNodePorts(o.config)),
		OnListeners:     metrics.SetLocalhostListeners,
		OnListenFailure: metrics.CountLocalhostListenFailure,
	})
	feed, err := p.feed(ctx, o, newSourceHooks(ctx, p.health, conn, guard, o.serviceProxyName))
	if err != nil {
		return nil, err
	}
	p.loop = model.NewLoop(feed, p.backend, model.LoopOptions{
		MinSyncPeriod: o.config.MinSyncPeriod.Duration,
		Logger:        klog.FromContext(ctx),
		OnQueued: func() {
			metrics.ObserveQueued()
			p.health.Queued()
		},
		OnSync: func(r model.SyncResult) { p.synced(ctx, r) },
	})
	return p, nil
}

// feed sets p.source and p.tracker, or p.client and p.remote, and returns the loop's feed.
func (p *parts) feed(ctx context.Context, o *options, hooks sourceHooks) (feed model.Feed, err error) {
	if o.nodeLocal.Source != "" {
		return p.remoteFeed(ctx, o, hooks)
	}
	if p.source, err = o.source(p.nodeName, hooks); err != nil {
		return nil, err
	}
	options := config.Tracker(o.config)
	options.ServiceProxyName = o.serviceProxyName
	options.NodeName, options.Logger, options.OnSkip = p.nodeName, klog.FromContext(ctx), metrics.CountSkip
	if o.nodeLocal.Serve != "" {
		options.History, options.Details = nodeLocalHistory, true
	}
	p.tracker = tracker.New(options)
	metrics.ShowTracker(p.tracker)
	return p.tracker, nil
}

// remoteFeed is feed for Services of a node-local server. The server sends the Node too.
func (p *parts) remoteFeed(ctx context.Context, o *options, hooks sourceHooks) (feed model.Feed, err error) {
	hooks.onFailing(nodeLocalSource, true)
	p.client, err = o.nodeLocal.newClient(ctx, nodelocal.Options{
		Node:              p.nodeName,
		OnConnected:       func(yes bool) { hooks.onFailing(nodeLocalSource, !yes) },
		IgnoreExternalIPs: config.Tracker(o.config).IgnoreExternalIPs,
		ServiceProxyName:  o.serviceProxyName,
		Guard:             hooks.guard,
	})
	if err != nil {
		return nil, err
	}
	p.remote = node.NewRemote(ctx, p.client, o.guard(p.nodeName, hooks), p.health.SetNode)
	return p.remote, nil
}

// nodeLocalSource names the node-local server in health and metrics.
const nodeLocalSource = "node-local-source"

// synced passes the changes of a successful sync to the parts that follow the kernel's rules.
func (p *parts) synced(ctx context.Context, r model.SyncResult) {
	metrics.ObserveSync(r)
	if r.Err != nil {
		return // logged by the loop
	}
	p.health.Synced()
	logger := klog.FromContext(ctx)
	if warning := missingPrimaryFamily(p.detectLocal, r.Changes.Node); warning != "" {
		logger.Info("Configuration warning", "warning", warning)
	}
	p.services.Apply(ctx, r.Changes)
	p.localhosts.Apply(ctx, r.Changes)
	select {
	case <-p.applied:
	default:
		close(p.applied)
		logger.Info("Programmed all Services; following changes from now on", "servicePorts", len(r.Changes.Ports), "duration", r.Duration.Round(time.Microsecond).String())
		returnMemory(time.Second) // after the start
	}
	logger.V(2).Info("Synced", "changed", len(r.Changes.Ports), "full", r.Changes.Full, "duration", r.Duration.Round(time.Microsecond).String())
}

// serve runs all parts until ctx ends or one of them fails. The rules stay.
func (p *parts) serve(ctx context.Context, o *options) error {
	parent := ctx
	group, ctx := errgroup.WithContext(parent)
	p.serveHTTP(ctx, group, o)
	if o.file != nil {
		group.Go(func() error { return o.file.Watch(ctx) })
	}
	if p.client != nil {
		group.Go(func() error { return p.client.Run(ctx) })
		group.Go(func() error { return p.remote.Run(ctx) })
	} else {
		group.Go(func() error { return p.source.Run(ctx, p.health.WatchNode(p.nodeName, p.tracker)) })
	}
	if o.nodeLocal.Serve != "" {
		if err := o.nodeLocal.serve(ctx, group, p.tracker); err != nil {
			group.Go(func() error { return err })
		}
	}
	group.Go(func() error { return p.loop.Run(ctx) })
	beside := func(run func(context.Context)) {
		group.Go(func() error {
			run(ctx)
			return nil
		})
	}
	beside(p.backend.Watch)
	beside(p.flows.Run)
	beside(func(ctx context.Context) { watchDetectLocal(ctx, p.detectLocal) })
	beside(func(ctx context.Context) { watchSilentEndpoints(ctx, p.flows.Conn(), p.backend.EndpointOf) })
	if p.counts != nil {
		beside(p.counts.Run)
	}
	if o.serviceProxyName == "" { // the first proxy's rules may look like leftovers to a second one
		options := leftovers.Options{Remover: o.remover(), OnLook: func(count map[leftovers.Kind]int, draining leftovers.Draining, conflict bool) {
			metrics.SetLeftoversConflict(conflict)
			metrics.SetDraining(draining.VirtualServers, draining.Connections, draining.Addresses)
			for _, kind := range leftovers.Kinds {
				metrics.SetLeftovers(string(kind), count[kind])
			}
		}}
		if o.config.Linux.Leftovers == v1alpha2.LeftoversRemove {
			options.Synced = p.applied
		}
		beside(func(ctx context.Context) { leftovers.Watch(ctx, options) })
	}
	err := await(parent, ctx, group)
	klog.FromContext(ctx).Info("Stopping; the rules stay in the kernel")
	return err
}

// remover returns the remover of other modes' leftovers.
func (o *options) remover() leftovers.Remover {
	return leftovers.Remover{
		DrainTimeout: o.config.Linux.LeftoversDrainTimeout.Duration,
		Excluded:     config.ParseCIDRs(o.config.IPVS.ExcludeCIDRs),
	}
}

// stopGrace bounds the wait for the current sync when the proxy stops; Kubernetes kills it after 30 s. If the process
// ends during a commit, the kernel undoes the commit, and the next process repeats it.
const stopGrace = 5 * time.Second

// await returns when all parts have ended, or stopGrace after the end of the group's ctx: with the error of the first part
// that failed, and without one if parent ended.
func await(parent, ctx context.Context, group *errgroup.Group) error {
	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(stopGrace):
	}
	klog.FromContext(ctx).Info("Leaving a sync that is still under way; the kernel undoes a commit that it has not finished", "waited", stopGrace.String())
	if parent.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// unlessStopped returns the error with which the process ends: none if a signal interrupted the start.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	return err
}

// returnMemory returns unused memory to the system after some time. Otherwise the runtime keeps what the start or a large
// commit used, and a later full Sync adds to it.
func returnMemory(after time.Duration) { time.AfterFunc(after, debug.FreeOSMemory) }

// missingPrimaryFamily returns kube-proxy's warning if pods have ranges, but none of the node's primary IP family. Nil
// stands for an unchanged Node.
func missingPrimaryFamily(local compiler.DetectLocal, current *model.Node) string {
	if current == nil {
		return ""
	}
	ranges, of := local.CIDRs, "clusterCIDR"
	if local.NodePodCIDRs {
		ranges, of = current.PodCIDRs, "the Node's podCIDRs"
	}
	if len(ranges) == 0 || len(current.IPs) == 0 {
		return ""
	}
	family := model.FamilyOf(current.IPs[0])
	if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return model.FamilyOf(p.Addr()) == family }) {
		return ""
	}
	return fmt.Sprintf("%s: no range of %s, the primary IP family of node %s: its pods cannot be told from other clients", of, family, current.Name)
}
