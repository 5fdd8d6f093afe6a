package main

import (
	"encoding/json"

	"github.com/nftproxy/nftproxy/internal/ruledump/colour"
	"github.com/nftproxy/nftproxy/internal/ruledump/watch"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
)

func newWatchCommand() *cobra.Command {
	var options watch.Options
	format := newFormat("text", "json")
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Tell of each change to the proxy's tables as it happens",
		Long: `watch prints each commit that changes the proxy's tables as the kernel announces it: when it
was, which process made it, whether that was the proxy, and what changed. It ends with Ctrl-C.
It needs CAP_NET_ADMIN.

While it runs, the kernel describes each commit of anybody to it in full, which makes large
commits slower: one of 60,000 elements took 213 ms instead of 133. So do not leave it running.
What packets add to maps of session affinity is no commit and is not announced.`,
		Example: `  # Who flushes the rules?
  ruledump watch

  # Changes that the proxy did not make, as JSON, one a line.
  ruledump watch -o json | jq -c 'select(.foreign)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := nft.Dial(nft.Config{})
			if err != nil {
				return err
			}
			defer conn.Close()
			out := cmd.OutOrStdout()
			return watch.Watch(cmd.Context(), conn, options, func(c *watch.Change) error {
				if format.value == "json" {
					return json.NewEncoder(out).Encode(c)
				}
				return c.Text(out, colour.For(out))
			})
		},
	}
	format.addTo(cmd)
	cmd.Flags().StringVar(&options.Proxy, "proxy", "kube-proxy", "name of the proxy's process; commits of others are foreign")
	addServiceProxyName(cmd.Flags(), &options.ServiceProxyName)
	cmd.Flags().IntVar(&options.MaxParts, "parts", 20, "how many parts of each commit to print")
	return cmd
}
