// Command kube-proxy programs a node's nftables with the Services of a Kubernetes cluster.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/transport"
	"k8s.io/component-base/cli"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/metrics"
	metricsfeatures "k8s.io/component-base/metrics/features"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/introspect"
	nftmetrics "github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/internal/version"
)

func main() {
	// With client-go's default of five minutes a proxy could go on with an expired certificate.
	transport.CertCallbackRefreshDuration = time.Minute
	os.Exit(cli.Run(newCommand()))
}

func newCommand() *cobra.Command { return newCommandFor(defaultOptions()) }

func newCommandFor(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kube-proxy",
		Short: "Program a node's nftables with the Services of a Kubernetes cluster",
		Long: `kube-proxy keeps a node's nftables in line with the Services and EndpointSlices of a
Kubernetes cluster. It takes them from the API server (--kubeconfig, or the service
account of the pod it runs in), from a directory of manifests (--manifests) or from a
node-local server (--node-local-source).

The rules stay in the kernel when kube-proxy exits, so that traffic flows on while it
restarts; --cleanup removes them.`,
		Args:          noArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			verflag.PrintAndExitIfRequested()
			if err := o.complete(cmd.Flags()); err != nil {
				return err
			}
			if err := o.apply(cmd.Context()); err != nil {
				return err
			}
			return o.do(cmd.Context())
		},
	}
	o.addFlags(cmd.Flags())
	verflag.AddFlags(cmd.Flags())
	cmd.AddCommand(newServerCommand(), newWatchCommand())
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetContext(signalContext())
	return cmd
}

// noArgs accepts empty arguments, which templates of manifests may leave behind.
func noArgs(cmd *cobra.Command, args []string) error {
	return cobra.NoArgs(cmd, slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "" }))
}

// apply makes the settings of the whole process, and logs the warnings.
func (o *options) apply(ctx context.Context) error {
	gates, _, _ := config.FeatureGates(o.config.FeatureGates)
	if err := logsapi.ValidateAndApplyAsField(&o.config.Logging, gates, field.NewPath("logging")); err != nil {
		return err
	}
	metricsfeatures.ApplyFeatureGates(gates)
	config.UseInClients(gates)
	gates.AddMetrics()
	nftmetrics.Register()
	shown, _ := v1alpha2.ToV1alpha1(o.config)
	if err := introspect.PublishConfig(shown); err != nil {
		return err
	}
	if o.config.ShowHiddenMetricsForVersion != "" {
		metrics.SetShowHidden()
	}
	logger := klog.FromContext(ctx)
	logger.Info("Version info", "nftproxy", version.Own(), "kubeProxy", version.KubeProxy(), "go", runtime.Version())
	if o.cleanup {
		return nil // the warnings are for a running proxy
	}
	for _, warning := range o.warnings {
		logger.Info("Configuration warning", "warning", warning)
	}
	return nil
}

// do runs the task that the command line selects.
func (o *options) do(ctx context.Context) error {
	switch {
	case o.writeConfigTo != "":
		return o.writeConfig(ctx)
	case o.cleanup:
		return cleanup(ctx, o.serviceProxyName, o.remover())
	case o.initOnly:
		return initOnly(ctx, o)
	}
	return unlessStopped(ctx, run(ctx, o))
}

// writeConfig writes the configuration with all defaults. It may be for a kube-proxy in another mode.
func (o *options) writeConfig(ctx context.Context) error {
	lost, err := config.Write(o.config, o.writeConfigVersion, o.writeConfigTo)
	if err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	logger := klog.FromContext(ctx)
	for _, loss := range lost {
		logger.Info("Configuration warning", "warning", fmt.Sprintf("not in %s: %s", o.writeConfigVersion, loss))
	}
	if err := o.checkRunnable(); err != nil {
		logger.Info("Configuration warning", "warning", err.Error())
	}
	logger.Info("Wrote configuration", "file", o.writeConfigTo, "version", o.writeConfigVersion)
	return nil
}

// checkRunnable refuses other modes, and settings without effect beside a node-local
// server. The error names file or flag.
func (o *options) checkRunnable() error {
	names := o.flagNames()
	if o.file != nil {
		names = nil
	}
	err := config.CheckMode(o.config.Mode, names)
	if err == nil {
		err = config.CheckSource(o.config, names)
	}
	if err != nil && o.file != nil {
		return fmt.Errorf("configuration %s: %w", o.file.Path, err)
	}
	return err
}
