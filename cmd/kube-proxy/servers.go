package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	zpages "k8s.io/component-base/zpages/features"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/health"
	"github.com/nftproxy/nftproxy/internal/introspect"
)

// retryServe is the time between two attempts to listen on an address.
const retryServe = 5 * time.Second

// httpServer is one of the proxy's own two servers.
type httpServer struct {
	// name is for messages; field sets the address.
	name, address, field string
	handler              http.Handler
	// failed posts an event.
	failed func(error)
}

// serveHTTP serves health and metrics. If it cannot listen, it ends the process with
// bindAddressHardFail, else tries again.
func (p *parts) serveHTTP(ctx context.Context, group *errgroup.Group, o *options) {
	for _, s := range []httpServer{
		{"health server", o.config.HealthzBindAddress, "healthzBindAddress", p.health.Handler(), p.events.HealthServerFailed},
		{"metrics server", o.config.MetricsBindAddress, "metricsBindAddress", introspection(o.config, o.flags), p.events.MetricsServerFailed},
	} {
		if s.address != "" {
			group.Go(func() error { return s.serve(ctx, *o.config.BindAddressHardFail) })
		}
	}
}

func (s *httpServer) serve(ctx context.Context, hardFail bool) error {
	for {
		err := s.serveOnce(ctx)
		if err == nil {
			return nil
		}
		s.failed(err)
		if hardFail {
			return err
		}
		klog.FromContext(ctx).Error(err, "Cannot serve, trying again", "server", s.name, "in", retryServe)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryServe):
		}
	}
}

func (s *httpServer) serveOnce(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("%s at %s: %w; stop what listens there, or choose another %s", s.name, s.address, err, s.field)
	}
	if err := health.Serve(ctx, listener, s.handler); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// introspection returns the handler of the metrics port.
func introspection(c *v1alpha2.KubeProxyConfiguration, flags *pflag.FlagSet) http.Handler {
	gates, _, _ := config.FeatureGates(c.FeatureGates)
	options := introspect.Options{Profiling: c.EnableProfiling, Statusz: gates.Enabled(zpages.ComponentStatusz)}
	if gates.Enabled(zpages.ComponentFlagz) {
		options.Flags = flags
	}
	return introspect.Handler(options)
}
