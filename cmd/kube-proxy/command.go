package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/version/verflag"
)

func newCommand() *cobra.Command {
	o := defaultOptions()
	logging := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{
		Use:   "kube-proxy",
		Short: "Program a node's nftables with the Services of a Kubernetes cluster",
		Long: `kube-proxy keeps a node's nftables in line with the Services and EndpointSlices of a
Kubernetes cluster. It takes them from the API server (--kubeconfig, or the service
account of the pod it runs in) or from a directory of manifests (--manifests).

The rules stay in the kernel when kube-proxy exits, so that traffic flows on while it
restarts; --cleanup removes them.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			verflag.PrintAndExitIfRequested()
			logs.InitLogs()
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return fmt.Errorf("logging flags: %w", err)
			}
			return run(cmd.Context(), o)
		},
	}
	o.addFlags(cmd.Flags())
	logsapi.AddFlags(logging, cmd.Flags())
	verflag.AddFlags(cmd.Flags())
	cmd.SetContext(signalContext())
	return cmd
}
