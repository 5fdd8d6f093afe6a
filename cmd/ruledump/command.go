package main

import (
	"fmt"
	"io"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/config"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
	"github.com/nftproxy/nftproxy/source/manifests"
	"github.com/nftproxy/nftproxy/tracker"
	"github.com/spf13/cobra"
)

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "ruledump",
		Short:         "Print the proxy's nftables rulesets",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newCompileCommand(), newLiveCommand())
	return root
}

func newCompileCommand() *cobra.Command {
	var dir, node, configFile string
	format := formatNft
	cmd := &cobra.Command{
		Use:   "compile --manifests DIR|FILE --node NAME",
		Short: "Print what the proxy on a node would program for manifests",
		Long: `compile reads Services, EndpointSlices, Nodes and ServiceCIDRs from a directory or file and prints
the ruleset that the proxy would program for them on the node, without privileges and
without touching the kernel. Unlike the proxy, which goes on with what is valid, it
refuses a directory with an invalid file.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			compilerConfig, err := loadConfig(configFile)
			if err != nil {
				return err
			}
			objects, err := manifests.Load(dir)
			if err != nil {
				return err
			}
			tables, conflicts, err := proxy.Compile(&objects, tracker.Options{NodeName: node}, compilerConfig)
			if err != nil {
				return err
			}
			for _, c := range conflicts {
				fmt.Fprintf(cmd.ErrOrStderr(), "ruledump: %s is claimed by several Services; %s gets it\n", c.Frontend, c.Owner.ServicePortName())
			}
			return format.write(cmd.OutOrStdout(), tables)
		},
	}
	cmd.Flags().StringVar(&dir, "manifests", "", "directory with manifests (.yaml, .yml, .json), or one such file")
	cmd.Flags().StringVar(&node, "node", "", "name of the Node to compile for")
	cmd.Flags().StringVar(&configFile, "config", "", "KubeProxyConfiguration file; by default kube-proxy's defaults")
	cmd.Flags().VarP(&format, "output", "o", "nft or json")
	for _, required := range []string{"manifests", "node"} {
		if err := cmd.MarkFlagRequired(required); err != nil {
			panic(err)
		}
	}
	return cmd
}

func loadConfig(file string) (compiler.Config, error) {
	if file == "" {
		return compiler.Default(), nil
	}
	c, err := config.Load(file)
	if err != nil {
		return compiler.Config{}, err
	}
	out, err := config.Compiler(c)
	if err != nil {
		return out, fmt.Errorf("configuration %s: %w", file, err)
	}
	return out, nil
}

func newLiveCommand() *cobra.Command {
	format := formatNft
	cmd := &cobra.Command{
		Use:   "live",
		Short: "Print the proxy's tables as the kernel holds them",
		Long: `live reads the tables ip kube-proxy and ip6 kube-proxy of the current network namespace
from the kernel over netlink and prints them. It needs CAP_NET_ADMIN. Expressions that
the proxy does not write print as "unknown-" and their name.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return live(cmd.OutOrStdout(), format)
		},
	}
	cmd.Flags().VarP(&format, "output", "o", "nft or json")
	return cmd
}

func live(w io.Writer, format outputFormat) error {
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return err
	}
	defer conn.Close()
	var tables []*nft.Table
	for _, family := range []nft.Family{nft.FamilyIP, nft.FamilyIP6} {
		table, err := conn.ReadTable(family, compiler.TableName)
		if err != nil {
			return err
		}
		if table != nil {
			tables = append(tables, table)
		}
	}
	if len(tables) == 0 {
		return fmt.Errorf("the kernel has no table ip %s or ip6 %s in this network namespace", compiler.TableName, compiler.TableName)
	}
	return format.write(w, tables)
}
