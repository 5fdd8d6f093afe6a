package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/offline"
	"github.com/nftproxy/nftproxy/internal/version"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/source/manifests"
	"github.com/nftproxy/nftproxy/tracker"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "ruledump",
		Short:         "Print the proxy's nftables rulesets",
		Version:       fmt.Sprintf("%s, for kube-proxy %s", version.Own(), version.KubeProxy()),
		SilenceUsage:  true,
		SilenceErrors: true,
		// Without a function to run, cobra prints the help for an unknown command and calls that a success.
		Args: knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newCompileCommand(), newLiveCommand(), newExplainCommand())
	return root
}

// knownCommand gets what is left of the command line if it starts with no command.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return fmt.Errorf("unknown command %q; there are %s", args[0], strings.Join(names, ", "))
}

func newCompileCommand() *cobra.Command {
	var input input
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
			tables, objects, err := input.compile(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if !hasNode(objects, input.node) {
				fmt.Fprintf(cmd.ErrOrStderr(), "ruledump: the manifests have no Node %s; these are the rules of a node without addresses and zone\n", input.node)
			}
			return format.write(cmd.OutOrStdout(), tables)
		},
	}
	input.addFlags(cmd)
	cmd.Flags().VarP(&format, "output", "o", "nft or json")
	for _, required := range []string{"manifests", "node"} {
		if err := cmd.MarkFlagRequired(required); err != nil {
			panic(err)
		}
	}
	return cmd
}

// input is what there is to compile.
type input struct{ manifests, node, config string }

func (i *input) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&i.manifests, "manifests", "", "directory with manifests (.yaml, .yml, .json), or one such file")
	cmd.Flags().StringVar(&i.node, "node", "", "name of the Node to compile for")
	cmd.Flags().StringVar(&i.config, "config", "", "KubeProxyConfiguration file, v1alpha1 or v1alpha2; by default kube-proxy's defaults")
}

// compile returns the tables and what they were compiled from.
func (i *input) compile(warnings io.Writer) ([]*nft.Table, *manifests.Objects, error) {
	compilerConfig, trackerOptions, err := loadConfig(i.config, warnings)
	if err != nil {
		return nil, nil, err
	}
	objects, err := manifests.Load(i.manifests)
	if err != nil {
		return nil, nil, err
	}
	trackerOptions.NodeName = i.node
	trackerOptions.OnUnguarded = func(namespace, service string, families []model.Family) {
		fmt.Fprintf(warnings, "ruledump: Service %s/%s: everybody may dial its %s load balancer IPs: loadBalancerSourceRanges has no range of the family, or one of length 0\n",
			namespace, service, strings.Trim(fmt.Sprint(families), "[]"))
	}
	tables, conflicts, err := offline.Compile(&objects, trackerOptions, compilerConfig)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range conflicts {
		fmt.Fprintf(warnings, "ruledump: %s is claimed by several Services; %s gets it\n", c.Frontend, c.Owner.ServicePortName())
	}
	return tables, &objects, nil
}

func hasNode(objects *manifests.Objects, name string) bool {
	return slices.ContainsFunc(objects.Nodes, func(n *corev1.Node) bool { return n.Name == name })
}

// loadConfig reads a configuration and prints the warnings about it.
func loadConfig(path string, warnings io.Writer) (compiler.Config, tracker.Options, error) {
	if path == "" {
		return compiler.Default(), tracker.Options{}, nil
	}
	file, err := config.Load(path)
	if err != nil {
		return compiler.Config{}, tracker.Options{}, err
	}
	for _, warning := range file.Warnings {
		fmt.Fprintf(warnings, "ruledump: configuration %s: %s\n", path, warning)
	}
	out, err := config.Compiler(file.Config)
	if err != nil {
		return out, tracker.Options{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return out, config.Tracker(file.Config), nil
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
	tables, err := readTables(conn)
	if err != nil {
		return err
	}
	return format.write(w, tables)
}

// readTables returns the proxy's tables as the kernel holds them.
func readTables(conn *nft.Conn) ([]*nft.Table, error) {
	var tables []*nft.Table
	for _, family := range nft.Families {
		table, err := conn.ReadTable(family, compiler.TableName)
		if err != nil {
			return nil, err
		}
		if table != nil {
			tables = append(tables, table)
		}
	}
	if len(tables) == 0 {
		return nil, fmt.Errorf("the kernel has no table ip %s or ip6 %s in this network namespace", compiler.TableName, compiler.TableName)
	}
	return tables, nil
}
