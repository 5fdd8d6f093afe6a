package main

import (
	"github.com/nftproxy/nftproxy/internal/ruledump/graph"
	"github.com/spf13/cobra"
)

func newGraphCommand() *cobra.Command {
	var from sourceOfServices
	format := newFormat("svg", "dot")
	cmd := &cobra.Command{
		Use:   "graph SERVICE",
		Short: "Draw the way that the packets of a Service take",
		Long: `graph draws the way that the packets of a Service take on this node: from the addresses that
clients dial, through the chains that serve them, to endpoints. Dashed is where clients get no
answer. What is many is folded, so a Service with 200 endpoints can be looked at.

The SVG needs nothing else, and is light or dark as its reader prefers.`,
		Example: `  ruledump graph shop/web > web.svg

  # With Graphviz, and with the nodes of endpoints.
  ruledump graph shop/web --kubeconfig ~/.kube/config --node node-1 -o dot | dot -Tpng > web.png`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, filter, err := from.open(cmd, args)
			if err != nil {
				return err
			}
			defer s.Close()
			g, err := graph.Of(s.Snapshot, filter)
			if err != nil {
				return err
			}
			if format.value == "dot" {
				return g.DOT(cmd.OutOrStdout())
			}
			return g.SVG(cmd.OutOrStdout())
		},
	}
	from.addTo(cmd, "namespace of the Service")
	format.addTo(cmd)
	return cmd
}
