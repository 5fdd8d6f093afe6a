// Package verb has ruledump's commands: a file for each verb, with its flags, its help, and its view of the rules.
package verb

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/version"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// New returns the command.
func New() *cobra.Command {
	root := &cobra.Command{
		Use:   "ruledump",
		Short: "Show what the proxy's nftables rules do",
		Long: `ruledump shows the nftables rules that the proxy wrote on this node, or would write: as
rules, as Services, as the way of one packet. It changes nothing; trace and watch --refused
alone add a table of their own, for as long as they run.

All commands take the same sources: the running kernel (on a node, the default),
manifests, a cluster, a node-local server, and a dump that "ruledump live -o json" made on
another node. From outside a node, kubectl-nftproxy runs it there: "kubectl nftproxy".`,
		Example: `  # Which Services does this node serve, and where do they go?
  ruledump services

  # Why does a client not reach a Service?
  ruledump explain --from 198.51.100.7 --to 192.0.2.10:80

  # Save what this node has, and look at it elsewhere.
  ruledump live -o json > node-1.json
  ruledump services --dump node-1.json`,
		Version:       fmt.Sprintf("%s, for kube-proxy %s", version.Own(), version.KubeProxy()),
		SilenceUsage:  true,
		SilenceErrors: true,
		// Without a function to run, cobra prints the help for an unknown command and calls that a success.
		Args: knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = suggestWithin
	root.SetFlagErrorFunc(suggestFlag)
	root.AddCommand(commands()...)
	return root
}

// commands returns the subcommands.
func commands() []*cobra.Command {
	return []*cobra.Command{
		newCheckCommand(), newServicesCommand(), newExplainCommand(), newDiffCommand(), newStatsCommand(), newGraphCommand(),
		newConnectionsCommand(), newTopCommand(), newWatchCommand(), newTraceCommand(), newReportCommand(),
		newPreflightCommand(), newCompileCommand(), newLiveCommand(), newSchemaCommand(), newManCommand(),
	}
}

// knownCommand gets what is left of the command line if it starts with no command.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		return fmt.Errorf("unknown command %q; did you mean %s?", args[0], strings.Join(similar, " or "))
	}
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	return fmt.Errorf("unknown command %q; there are %s", args[0], strings.Join(names, ", "))
}

// suggestWithin is the largest number of wrong letters with which a name is suggested.
const suggestWithin = 2

// suggestFlag adds flags with similar names to the error about an unknown one. cobra compares names of commands
// alone, so each flag becomes a command for that.
func suggestFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	name := unknown.GetSpecifiedName()
	if letters := unknown.GetSpecifiedShortnames(); letters != "" {
		name = letters // of -dump, not only its first
	}
	flags := &cobra.Command{SuggestionsMinimumDistance: suggestWithin}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	similar := flags.SuggestionsFor(name)
	if len(name) < 2 || len(similar) == 0 {
		return err
	}
	return fmt.Errorf("%w; did you mean --%s?", err, strings.Join(similar, " or --"))
}

func newCompileCommand() *cobra.Command {
	var from source
	cmd := &cobra.Command{
		Use:   "compile {--manifests DIR|FILE | --kubeconfig FILE | --node-local TARGET} --node NAME",
		Short: "Print the rules that the proxy on a node would write",
		Long: `compile reads Services, EndpointSlices, Nodes and ServiceCIDRs from manifests or from a
cluster, or what a node-local server made of them. It prints the ruleset that the proxy
would write for them on the node. It needs no privileges and does not touch the kernel.
It refuses a directory with an invalid file, unlike the proxy, which uses the valid ones.`,
		Example: `  # What would node-1 do, given these manifests?
  ruledump compile --manifests objects/ --node node-1

  # Let nft check it.
  ruledump compile --kubeconfig ~/.kube/config --node node-1 | nft -c -f -`,
		Args: cobra.NoArgs,
	}
	from.addWanted(cmd, `; "ruledump live" prints the kernel's rules`)
	return from.shows(cmd, newFormat("nft", "json"), func(_ *cobra.Command, s *ruledump.Snapshot, _ Filter) (View, error) {
		return ruleset{s}, nil
	})
}

func newLiveCommand() *cobra.Command {
	var from source
	cmd := &cobra.Command{
		Use:   "live",
		Short: "Print the proxy's rules as the kernel holds them, or make a dump",
		Long: `live reads the tables ip kube-proxy and ip6 kube-proxy of the current network namespace
from the kernel over netlink and prints them. It needs CAP_NET_ADMIN. Expressions that
the proxy does not write print as "unknown-" and their name.

With -o json it writes a dump: what all commands read with --dump, on any machine, without
privileges. A dump has the tables of other programs too, for explain, with at most 10,000
elements of a set and 32 MB in all; it names what it leaves out. With --dump it prints such a
dump again.

It leaves out the clients of Services with session affinity: there may be many, and their
addresses are private. --clients adds them.`,
		Example: `  # Save what this node has.
  ruledump live -o json > node-1.json

  # The addresses of which Services have no endpoint?
  ruledump live -o json | jq -r '.tables[].maps[] | select(.name == "no-endpoint-services").elements[].comment'

  # Print a dump as nft would.
  ruledump live --dump node-1.json`,
		Args: cobra.NoArgs,
	}
	addServiceProxyName(cmd.Flags(), &from.serviceProxyName)
	from.addActual(cmd)
	cmd.Flags().BoolVar(&from.clients, "clients", false, "print the clients of Services with session affinity too")
	format := newFormat("nft", "json")
	return from.shows(cmd, format, func(cmd *cobra.Command, s *ruledump.Snapshot, _ Filter) (View, error) {
		if from.conn != nil && format.value != "nft" {
			s.AddOthers(cmd.Context(), from.conn, true)
		}
		return ruleset{s}, nil
	})
}

// oneArgument refuses all numbers of arguments but one, and says what it wants.
func oneArgument(want string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("want one argument, %s, and got %d", want, len(args))
		}
		return nil
	}
}

func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write man pages",
		Long:   `man writes the man pages of ruledump and of all its commands to a directory, from the text that --help prints.`,
		Hidden: true,
		Args:   oneArgument("a directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("man pages: %w", err)
			}
			cmd.Root().DisableAutoGenTag = true // no date: the same source gives the same pages
			header := &doc.GenManHeader{Section: "8", Source: "nftproxy " + version.Own(), Manual: "nftproxy"}
			return doc.GenManTree(cmd.Root(), header, args[0])
		},
	}
}

//go:embed schema.json
var schema []byte

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of all JSON that ruledump writes",
		Long: `schema prints the JSON Schema (draft 2020-12) of the documents that all commands write with
"-o json" and "-o yaml". Each has an apiVersion and a kind. Further fields may come without
a new apiVersion; readers ignore those that they do not know.`,
		Example: `  ruledump schema > ruledump.schema.json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(schema)
			return err
		},
	}
}

// Exit statuses besides 0. 1 and 2 are diff(1)'s.
const (
	// exitDifferent is for a difference that the diff command found, and for what the
	// preflight command wants to be looked at, and for what the check command found broken.
	exitDifferent = 1
	// exitFailed is for everything that could not be done, and for a command line that makes no sense.
	exitFailed = 2
	// exitStop is for the preflight command: the swap would fail.
	exitStop = 3
)

// errDifferent ends the commands check, diff and preflight with exitDifferent. It is not printed.
var errDifferent = errors.New("there is a difference")

// errUnknown ends the check command with exitFailed. It is not printed.
var errUnknown = errors.New("it is not known whether everything works")

// Execute runs the command and returns the exit status.
func Execute(root *cobra.Command) int {
	running := false
	for _, cmd := range append(root.Commands(), root) {
		if run := cmd.RunE; run != nil {
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				running = true
				return run(cmd, args)
			}
		}
	}
	cmd, err := root.ExecuteC()
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errDifferent):
		return exitDifferent
	case errors.Is(err, errStop):
		return exitStop
	case errors.Is(err, errUnknown):
		return exitFailed
	}
	p := &Page{} // the error may name a table of a dump
	p.printf("ruledump: %s\n", strings.TrimSpace(err.Error()))
	if !running {
		p.printf("%q says more\n", cmd.CommandPath()+" --help")
	}
	fmt.Fprint(root.ErrOrStderr(), p.String())
	return exitFailed
}
