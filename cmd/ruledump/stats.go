package main

import (
	"github.com/nftproxy/nftproxy/internal/ruledump/statistics"
	"github.com/spf13/cobra"
)

func newStatsCommand() *cobra.Command {
	var from source
	format := newFormat("text", "json", "yaml", "metrics")
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count chains, rules, elements and clients",
		Long: `stats counts what is in the tables, estimates the kernel memory that they take, and says who
owns them and how full each map of session affinity is. On a live node it also looks for what
kube-proxy's modes iptables and ipvs left, which takes packets away from these rules.

With -o metrics it prints the text format of Prometheus, for the textfile collector of a node
exporter. The number of series does not depend on how many Services there are.`,
		Example: `  # Every minute, by cron.
  ruledump stats -o metrics > /var/lib/node_exporter/nftproxy.prom.new &&
    mv /var/lib/node_exporter/nftproxy.prom.new /var/lib/node_exporter/nftproxy.prom`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := from.open(cmd)
			if err != nil {
				return err
			}
			defer s.Close()
			counted, err := statistics.Of(s.Snapshot)
			if err == nil && s.conn != nil {
				err = counted.AddLeftovers()
			}
			if err != nil {
				return err
			}
			switch format.value {
			case "text":
				_, err = counted.WriteTo(cmd.OutOrStdout())
			case "metrics":
				err = counted.Metrics(cmd.OutOrStdout())
			default:
				err = writeValue(cmd.OutOrStdout(), format.value, counted)
			}
			return err
		},
	}
	from.addTo(cmd)
	format.addTo(cmd)
	return cmd
}
