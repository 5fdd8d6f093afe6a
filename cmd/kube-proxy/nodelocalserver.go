package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/manifests"
	nftmetrics "github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/source/apiserver"
	"github.com/nftproxy/nftproxy/tracker"
)

// serverOptions are the flags of node-local-server.
type serverOptions struct {
	*options
	ignoreExternalIPs bool
}

// newServerCommand returns the command that serves the node-local API and nothing else.
func newServerCommand() *cobra.Command {
	o := &serverOptions{options: defaultOptions()}
	cmd := &cobra.Command{
		Use:   "node-local-server",
		Short: "Serve the node-local API for any number of nodes",
		Long: `node-local-server applies Kubernetes' rules about Services for any number of nodes, and
sends the result to their backends over gRPC. It needs no privileges and writes no rules.`,
		Args:          noArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := signalContext()
			return unlessStopped(ctx, o.run(ctx))
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func (o *serverOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.nodeLocal.Serve, "listen", "unix:///run/nftproxy/node-local.sock",
		"The address of the server: unix:///PATH, or tcp://HOST:PORT with the --node-local-*-file flags")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", "",
		"The IP address and port for /metrics, /healthz, /livez and /readyz; by default there is none")
	flags.BoolVar(&o.ignoreExternalIPs, "ignore-external-ips", false,
		"Leave out the externalIPs of all Services, as --feature-gates=AllowServiceExternalIPs=false does")
	flags.StringVar(&o.serviceProxyName, "service-proxy-name", "", serviceProxyNameHelp)
	flags.Var(cliflag.NewMapStringBool(&o.config.FeatureGates), "feature-gates", "Feature gates to set, as name=true or name=false: AllowServiceExternalIPs, NFTProxyDirectReturn, and those of the client of the API server")
	o.addSome(flags, "kubeconfig", "master", "manifests", "kube-api-content-type", "kube-api-qps", "kube-api-burst", "authorize-node-names",
		"node-local-cert-file", "node-local-key-file", "node-local-ca-file")
}

// newServerGuard returns the guard of a server. Clients may have rules for Services and endpoints, so the server
// believes no empty first list. It believes a list with default/kubernetes alone, because a new cluster has no other
// Service; clients with a state hold their other ports.
func newServerGuard(ctx context.Context) *model.ListGuard {
	guard := &model.ListGuard{
		Before: func(_ string, kubernetes bool) bool { return !kubernetes },
		OnHeld: func(resource, reason string) { nftmetrics.SetLossesHeld(resource, reason != "") },
	}
	go believeOnSignal(ctx, guard)
	return guard
}

func (o *serverOptions) source(guard *model.ListGuard) (tracker.Source, error) {
	if o.manifests == "" {
		apiserverConfig := o.apiserver("")
		apiserverConfig.EveryNode, apiserverConfig.OnFailing, apiserverConfig.Guard = true, nftmetrics.SetWatchFailing, guard
		return apiserver.New(apiserverConfig)
	}
	if o.config.ClientConnection.Kubeconfig != "" || o.master != "" {
		return nil, errors.New("--manifests: cannot be combined with --kubeconfig or --master: Services come from one place")
	}
	source := manifests.New(o.manifests)
	source.OnFailing, source.Guard, source.MayBeEmpty = nftmetrics.SetWatchFailing, guard, o.serviceProxyName != ""
	return source, nil
}

func (o *serverOptions) run(ctx context.Context) error {
	if err := checkServiceProxyName(o.serviceProxyName); err != nil {
		return err
	}
	gates, err := config.ServerFeatureGates(o.config.FeatureGates)
	if err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	config.UseInClients(gates)
	nftmetrics.RegisterServer()
	guard := newServerGuard(ctx)
	source, err := o.source(guard)
	if err != nil {
		return err
	}
	t := tracker.New(tracker.Options{
		EveryNode: true, ServiceProxyName: o.serviceProxyName, History: nodeLocalHistory, Details: true, IgnoreExternalIPs: o.ignoreExternalIPs || !gates.Enabled(config.AllowServiceExternalIPs), DirectReturn: gates.Enabled(config.DirectReturn),
		Logger: klog.FromContext(ctx), OnSkip: nftmetrics.CountSkip,
	})
	nftmetrics.ShowTracker(t)
	group, ctx := errgroup.WithContext(ctx)
	if err := o.nodeLocal.serve(ctx, group, t); err != nil {
		return err
	}
	if o.metricsAddress != "" {
		s := &httpServer{"metrics server", o.metricsAddress, "--metrics-bind-address", serverPages(t, guard), func(error) {}}
		group.Go(func() error { return s.serve(ctx, true) })
	}
	group.Go(func() error { return source.Run(ctx, t) })
	return group.Wait()
}

// serverPages returns the metrics and the health of a server. /livez says that the process answers; /readyz and
// /healthz are 503 until t has all Services and EndpointSlices. Later they are 200, and list held objects, which
// clients get too.
func serverPages(t *tracker.Tracker, guard *model.ListGuard) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", legacyregistry.Handler())
	ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") } // the client may be gone
	ready := func(w http.ResponseWriter, r *http.Request) {
		if reason := t.WaitingFor(); reason != "" {
			http.Error(w, "not ready: waiting for "+reason, http.StatusServiceUnavailable)
			return
		}
		ok(w, r)
		for _, held := range guard.Held() {
			_, _ = io.WriteString(w, "; "+held)
		}
	}
	mux.HandleFunc("/livez", ok)
	mux.HandleFunc("/readyz", ready)
	mux.HandleFunc("/healthz", ready)
	return mux
}
