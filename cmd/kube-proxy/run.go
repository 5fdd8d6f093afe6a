package main

import (
	"context"
	"os/signal"
	"syscall"
	"time"

	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
	"github.com/nftproxy/nftproxy/tracker"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
)

// signalContext ends on SIGTERM or SIGINT; a second one kills the process.
func signalContext() context.Context {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)
	return ctx
}

func run(ctx context.Context, o *options) error {
	if err := o.validate(); err != nil {
		return err
	}
	compilerConfig, err := o.compiler()
	if err != nil {
		return err
	}
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return err
	}
	defer conn.Close()
	if o.cleanup {
		return proxy.Cleanup(conn)
	}
	nodeName, err := o.nodeName()
	if err != nil {
		return err
	}
	source, err := o.source(nodeName)
	if err != nil {
		return err
	}
	if err := conn.Probe(); err != nil {
		return err
	}
	backend, err := proxy.NewBackend(conn, compilerConfig, proxy.Hooks{OnCommit: recordCommit, OnRepair: recordRepair})
	if err != nil {
		return err
	}
	flows, err := conntrack.Dial(0)
	if err != nil {
		return err
	}
	defer flows.Close()
	backend.RemoveStaleFlows(flows)
	logger := klog.FromContext(ctx)
	t := tracker.New(tracker.Options{NodeName: nodeName, Logger: logger, OnSkip: recordSkip})
	loop := tracker.NewLoop(t, backend, tracker.LoopOptions{Logger: logger, OnQueued: recordQueued, OnSync: func(r tracker.SyncResult) { recordSync(logger, r) }})
	logger.Info("Starting", "node", nodeName, "mode", "nftables")
	return serve(ctx, o, source, t, loop, backend)
}

// serve runs all parts until ctx ends or one of them fails. The rules stay.
func serve(ctx context.Context, o *options, source tracker.Source, t *tracker.Tracker, loop *tracker.Loop, backend *proxy.Backend) error {
	group, ctx := errgroup.WithContext(ctx)
	if o.metricsAddress != "" {
		listener, err := listenMetrics(o.metricsAddress)
		if err != nil {
			return err
		}
		group.Go(func() error { return serveMetrics(ctx, listener) })
	}
	group.Go(func() error { return source.Run(ctx, t) })
	group.Go(func() error { return loop.Run(ctx) })
	group.Go(func() error {
		backend.Watch(ctx)
		return nil
	})
	err := group.Wait()
	klog.FromContext(ctx).Info("Stopping; the rules stay in the kernel")
	return err
}

// recordSync counts a sync and says what went wrong with it.
func recordSync(logger klog.Logger, r tracker.SyncResult) {
	observeSync(r)
	if r.Err != nil {
		return // the loop has logged it
	}
	logger.V(2).Info("Synced", "changed", len(r.Changes.Ports), "full", r.Changes.Full, "duration", r.Duration.Round(time.Microsecond).String())
}
