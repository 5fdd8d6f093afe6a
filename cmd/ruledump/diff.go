package main

import (
	"errors"
	"fmt"

	"github.com/nftproxy/nftproxy/internal/ruledump/colour"
	"github.com/nftproxy/nftproxy/internal/ruledump/difference"
	"github.com/spf13/cobra"
)

func newDiffCommand() *cobra.Command {
	var from source
	var all bool
	format := newFormat("text", "json", "yaml")
	cmd := &cobra.Command{
		Use:   "diff {--manifests DIR|FILE | --kubeconfig FILE | --node-local TARGET} --node NAME [--dump FILE]",
		Short: "Say how the kernel's rules differ from the desired state",
		Long: `diff compiles the desired rules, from manifests, a cluster or a node-local server, and
compares them with those of the kernel or of a dump: first in terms of Services, then in
elements, chains and rules. A line with - is missing, one with + is there and not wanted,
one with ~ is there in another way.

The exit status is 0 if there is no difference, 1 if there is one, and 2 if that could not be
found out. A kernel without the proxy's tables is a difference: all is missing. The proxy is
a moment behind the cluster, so a difference counts that is there twice, some seconds apart.

The desired rules depend on the proxy's settings. Without --config, diff asks the proxy that
runs beside the kernel's tables (--proxy-address), and fails if none answers. A dump is
compared with kube-proxy's default settings. The output names the settings, unless --config
does. Clients of Services with session affinity do not count.`,
		Example: `  # For cron: is this node as the cluster wants it?
  ruledump diff --kubeconfig /etc/kubernetes/kubeconfig --node "$(hostname)"

  # The same while no proxy runs.
  ruledump diff --kubeconfig /etc/kubernetes/kubeconfig --node "$(hostname)" --config /var/lib/kube-proxy/config.conf

  # Does this node have what its node-local server wants?
  ruledump diff --node-local unix:///run/nftproxy/node-local.sock --node "$(hostname)"

  # What was different when the dump was made?
  ruledump diff --manifests objects/ --node node-1 --dump node-1.json`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if !from.isCompiled() {
				return errors.New("give " + compiledSources + ", which say what is wanted")
			}
			return from.checkWanted()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := diff(cmd, &from)
			if err != nil {
				return err
			}
			if format.value == "text" {
				if from.config == "" {
					fmt.Fprintf(cmd.OutOrStdout(), "compared with %s\n", d.Settings)
				}
				err = d.Text(cmd.OutOrStdout(), all, colour.For(cmd.OutOrStdout()))
			} else {
				err = writeValue(cmd.OutOrStdout(), format.value, d)
			}
			switch {
			case err != nil:
				return err
			case !d.Equal:
				return errDifferent
			}
			return nil
		},
	}
	from.addWanted(cmd)
	from.addActual(cmd)
	format.addTo(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "print everything that differs, not only the first 20 Services and the first 20 elements and rules")
	return cmd
}

func diff(cmd *cobra.Command, from *source) (*difference.Difference, error) {
	actual, err := from.present(cmd)
	if err != nil {
		return nil, err
	}
	defer actual.Close()
	if err := checkSettings(cmd, from); err != nil {
		return nil, err
	}
	wanted, err := from.compile(cmd)
	if err != nil {
		return nil, err
	}
	if err := actual.NeedTables(); err != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "ruledump:", err)
	}
	d, err := difference.Of(wanted, actual.Snapshot)
	if err == nil {
		settings := from.compilation()
		d.Settings = settings.Settings()
	}
	return d, err
}

// checkSettings refuses to compare a kernel with rules for other settings than its proxy has, unless told to. It warns
// if the proxy is another node's.
func checkSettings(cmd *cobra.Command, from *source) error {
	switch {
	case from.proxy != nil && from.proxy.Node != from.node:
		fmt.Fprintf(cmd.ErrOrStderr(), "ruledump: the proxy at %s says that this is node %s, and --node is %s\n", from.proxy.Address, from.proxy.Node, from.node)
	case from.noProxy != nil && from.config == "":
		return fmt.Errorf("%w: give its metrics address (--proxy-address), its configuration file (--config), or --proxy-address= for kube-proxy's defaults", from.noProxy)
	}
	return nil
}
