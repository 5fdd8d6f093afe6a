package main

import (
	"context"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/health"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/internal/node"
	"github.com/nftproxy/nftproxy/localnodeport"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
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
	// The kernel closes the connection with the process. Close would wait for a sync that is left behind.
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return err
	}
	p, err := newParts(ctx, o, compilerConfig, conn)
	if err != nil {
		return err
	}
	setOOMScore(ctx, o.config)
	if err := prepareKernel(ctx, o.config, conn); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Starting", "node", p.nodeName, "mode", "nftables")
	p.events.Starting()
	return p.serve(ctx, o)
}

// parts is what a running proxy consists of.
type parts struct {
	nodeName string
	source   tracker.Source
	tracker  *tracker.Tracker
	loop     *tracker.Loop
	backend  *proxy.Backend
	flows    *proxy.FlowCleaner
	// events is nil when Services do not come from an API server.
	events *node.Events

	health     *health.Proxy
	services   *health.Services
	localhosts *localnodeport.Forwarder

	// detectLocal is how clients of the cluster are told.
	detectLocal compiler.DetectLocal
	// programmed says that a sync has succeeded.
	programmed bool
}

func newParts(ctx context.Context, o *options, compilerConfig compiler.Config, conn *nft.Conn) (p *parts, err error) {
	p = &parts{health: newHealth(o.config), detectLocal: compilerConfig.DetectLocal}
	if p.nodeName, err = o.nodeName(); err != nil {
		return nil, err
	}
	if p.source, err = o.source(p.nodeName, newSourceHooks(ctx, p.health, conn)); err != nil {
		return nil, err
	}
	if p.events, err = o.events(ctx, p.nodeName); err != nil {
		return nil, err
	}
	if p.backend, err = proxy.NewBackend(conn, compilerConfig, hooks(p.health)); err != nil {
		return nil, err
	}
	if p.flows, err = proxy.NewFlowCleaner(0, observeFlows); err != nil {
		return nil, err
	}
	p.backend.RemoveStaleFlows(p.flows)
	p.services = newServiceHealth(p.health, compilerConfig, p.events)
	p.localhosts = newForwarder(o.config)
	logger := klog.FromContext(ctx)
	trackerOptions := config.Tracker(o.config)
	trackerOptions.NodeName, trackerOptions.Logger, trackerOptions.OnSkip = p.nodeName, logger, metrics.CountSkip
	p.tracker = tracker.New(trackerOptions)
	metrics.ShowTracker(p.tracker)
	p.loop = tracker.NewLoop(p.tracker, p.backend, tracker.LoopOptions{
		MinSyncPeriod: o.config.MinSyncPeriod.Duration,
		Logger:        logger,
		OnQueued:      p.queued,
		OnSync:        func(r tracker.SyncResult) { p.synced(ctx, r) },
	})
	return p, nil
}

func (p *parts) queued() {
	metrics.ObserveQueued()
	p.health.Queued()
}

// synced tells everything that follows the rules in the kernel what they now are.
func (p *parts) synced(ctx context.Context, r tracker.SyncResult) {
	metrics.ObserveSync(r)
	if r.Err != nil {
		return // the loop has logged it
	}
	p.health.Synced()
	p.warnOfPrimaryFamily(ctx, r.Changes.Node)
	p.services.Apply(ctx, r.Changes)
	p.localhosts.Apply(ctx, r.Changes)
	if !p.programmed {
		p.programmed = true
		klog.FromContext(ctx).Info("Programmed all Services; following changes from now on", "servicePorts", len(r.Changes.Ports), "duration", r.Duration.Round(time.Microsecond).String())
		returnMemory(startIsOver)
	}
	klog.FromContext(ctx).V(2).Info("Synced", "changed", len(r.Changes.Ports), "full", r.Changes.Full, "duration", r.Duration.Round(time.Microsecond).String())
}

// serve runs all parts until ctx ends or one of them fails. The rules stay.
func (p *parts) serve(ctx context.Context, o *options) error {
	parent := ctx
	group, ctx := errgroup.WithContext(parent)
	p.serveHTTP(ctx, group, o)
	if o.file != nil {
		group.Go(func() error { return o.file.Watch(ctx) })
	}
	group.Go(func() error { return p.source.Run(ctx, p.health.WatchNode(p.nodeName, p.tracker)) })
	group.Go(func() error { return p.loop.Run(ctx) })
	group.Go(func() error {
		p.backend.Watch(ctx)
		return nil
	})
	group.Go(func() error {
		p.flows.Run(ctx)
		return nil
	})
	group.Go(func() error {
		leftovers.Watch(ctx, showLeftovers)
		return nil
	})
	err := await(parent, ctx, group)
	klog.FromContext(ctx).Info("Stopping; the rules stay in the kernel")
	return err
}

// hooks counts what the backend does. Tables that differ and cannot be repaired count as a change that waits for a sync.
func hooks(h *health.Proxy) proxy.Hooks {
	return proxy.Hooks{
		OnCommit:        metrics.ObserveCommit,
		OnCompile:       metrics.ObserveCompile,
		OnForeignChange: metrics.CountForeignChange,
		OnRepair:        metrics.CountRepair,
		OnDiverged: func(yes bool) {
			metrics.SetDiverged(yes)
			if yes {
				h.Queued()
			} else {
				h.Synced()
			}
		},
	}
}
