// Command proxytest sends the golden cases' packets through a node that any service proxy runs, and says which of them
// went elsewhere.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/proxytest"
	"github.com/nftproxy/nftproxy/testdata"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// The exit codes.
const (
	exitSame  = 0
	exitNew   = 1
	exitError = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	code := exitSame
	command := newCommand(&code)
	err := command.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "proxytest:", err)
		code = exitError
	}
	os.Exit(code)
}

// flags are the flags of the command.
type flags struct {
	proxytest.Options
	corpus, cases, family, format, config, expect string
	keep                                          bool
	// The flags of a comparison of two proxies.
	random  int
	seed    uint64
	against string
	found   string
}

func newCommand(code *int) *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "proxytest --proxy COMMAND [flags]",
		Short: "Send the golden cases' packets through any service proxy",
		Long: `proxytest makes a node, pods and a second node out of network namespaces, runs the proxy's command on the node,
serves each case's objects from an API server, sends its packets, and says which of them went elsewhere. It needs root.

In the command, {config} is the path of a KubeProxyConfiguration, {kubeconfig} that of a kubeconfig, {node} the name of
the Node, and {node-local} the address of a node-local server.

With --random it compares two proxies: --proxy and --against run on two nodes that are alike, and random Services get random
packets. Manifests that show a difference are made smaller, and become a case in the directory of --found.

Exit code 0: every case is the same, or differs as it is known to. 1: there are new differences, or the proxy failed.
2: the test could not be made.`,
		Example: `  proxytest --proxy 'kube-proxy --config {config}'
  proxytest --proxy 'kube-proxy --config {config}' --case 'affinity-.*' --family 4 -o junit
  proxytest --random 20 --proxy 'kube-proxy --config {config}' --against './other-proxy {kubeconfig}'`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			*code, err = f.run(c)
			return err
		},
	}
	c.Flags().StringVar(&f.Command, "proxy", "", "the command of the proxy")
	c.Flags().StringVar(&f.corpus, "corpus", "", "a directory of cases; default are those of this program")
	c.Flags().StringVar(&f.cases, "case", "", "only the cases whose whole names match this regular expression")
	c.Flags().StringVar(&f.family, "family", "dual", "the IP families: 4, 6 or dual")
	c.Flags().StringVarP(&f.format, "output", "o", "text", "the format: "+strings.Join(slices.Sorted(maps.Keys(proxytest.Formats)), ", "))
	c.Flags().StringVar(&f.expect, "expect", "", "known differences: a file, or the name of a proxy of which the corpus has some (expect.NAME.yaml)")
	c.Flags().StringVar(&f.config, "config", "", "a file with fields of {config} that win over those of the cases, such as mode")
	c.Flags().BoolVar(&f.Fresh, "fresh", false, "a new node and process for each case")
	c.Flags().DurationVar(&f.Ready, "ready", 0, "the time that the proxy has to apply the objects of a case (default 30s)")
	c.Flags().StringVar(&f.Kubernetes, "kubernetes", "", "with --random: serve the objects from Kubernetes' own kube-apiserver and etcd in this directory")
	c.Flags().BoolVar(&f.keep, "keep", false, "stop after the first case with a new difference, and keep the lab until Ctrl-C")
	c.Flags().IntVar(&f.random, "random", 0, "compare with --against on that many random clusters, instead of running cases")
	c.Flags().StringVar(&f.against, "against", "", "the command of the proxy that --random compares with")
	c.Flags().Uint64Var(&f.seed, "seed", 0, "the seed of the first of these clusters; the next has the next one (default by chance)")
	c.Flags().StringVar(&f.found, "found", "proxytest-found", "the directory of the cases that --random finds; they run with --corpus")
	c.MarkFlagsRequiredTogether("random", "against")
	for _, name := range []string{"case", "fresh"} {
		c.MarkFlagsMutuallyExclusive("random", name)
	}
	c.AddCommand(newMatrix())
	return c
}

func newMatrix() *cobra.Command {
	return &cobra.Command{
		Use:     "matrix NAME=FILE...",
		Short:   "Print a table of cases and proxies from reports that -o json wrote",
		Example: "  proxytest matrix 'our proxy=ours.json' other=other.json",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var names []string
			var reports []*proxytest.Report
			for _, arg := range args {
				name, path, ok := strings.Cut(arg, "=")
				if !ok {
					return fmt.Errorf("%q is not NAME=FILE", arg)
				}
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				report := &proxytest.Report{}
				if err := json.Unmarshal(data, report); err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
				names, reports = append(names, name), append(reports, report)
			}
			return proxytest.Matrix(c.OutOrStdout(), names, reports)
		},
	}
}

func (f *flags) run(c *cobra.Command) (code int, err error) {
	format := proxytest.Formats[f.format]
	if format == nil {
		return 0, fmt.Errorf("--output: %q is none of %v", f.format, slices.Sorted(maps.Keys(proxytest.Formats)))
	}
	if f.Families, err = proxytest.ParseFamilies(f.family); err != nil {
		return 0, fmt.Errorf("--family: %w", err)
	}
	if f.config != "" {
		data, err := os.ReadFile(f.config)
		if err != nil {
			return 0, err
		}
		if err := yaml.Unmarshal(data, &f.Config); err != nil {
			return 0, fmt.Errorf("%s: %w", f.config, err)
		}
	}
	log := c.ErrOrStderr()
	f.Progress = func(r proxytest.Result) { fmt.Fprintf(log, "%-5s %5.1f s  %s\n", r.Verdict, r.Seconds, r.Case) }
	if f.keep {
		f.Keep = func(commands string) {
			fmt.Fprintf(log, "The lab stays until Ctrl-C:\n%s", commands)
			<-c.Context().Done()
		}
	}
	report, err := f.report(c, log)
	if err != nil {
		return 0, err
	}
	if report.Count(proxytest.New) > 0 {
		code = exitNew
	}
	return code, format(report, c.OutOrStdout())
}

// report runs the cases, or compares two proxies.
func (f *flags) report(c *cobra.Command, log io.Writer) (*proxytest.Report, error) {
	if c.Flags().Changed("random") {
		return f.compare(c, log)
	}
	for _, name := range []string{"seed", "found", "kubernetes"} {
		if c.Flags().Changed(name) {
			return nil, fmt.Errorf("--%s goes with --random only", name)
		}
	}
	cases, err := f.selected()
	if err != nil {
		return nil, err
	}
	return proxytest.Run(c.Context(), cases, f.Options)
}

// compare compares two proxies.
func (f *flags) compare(c *cobra.Command, log io.Writer) (*proxytest.Report, error) {
	if !c.Flags().Changed("seed") {
		f.seed = uint64(rand.Uint32())
	}
	if info, err := os.Stat(f.found); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("--found: %s is no directory", f.found)
	}
	if cases, err := flows.ReadCases(f.corpusFS()); err != nil {
		return nil, err
	} else if err := f.readPromise(cases); err != nil {
		return nil, err
	}
	fmt.Fprintf(log, "seed %d\n", f.seed)
	return proxytest.RunRandom(c.Context(), proxytest.RandomOptions{
		Options: f.Options, Against: f.against, Rounds: f.random, Seed: f.seed, Corpus: f.corpusFS(),
		Log: func(line string) { fmt.Fprintln(log, line) },
		Found: func(found flows.Case) error {
			path, err := found.Write(f.found)
			fmt.Fprintf(log, "wrote %s\n", path)
			return err
		},
	})
}

func (f *flags) corpusFS() fs.FS {
	if f.corpus != "" {
		return os.DirFS(f.corpus)
	}
	return testdata.Corpus
}

// readPromise reads that of --expect, about all cases of the corpus.
func (f *flags) readPromise(cases []flows.Case) error {
	if f.expect == "" {
		return nil
	}
	data, err := fs.ReadFile(f.corpusFS(), "expect."+f.expect+".yaml")
	if err != nil {
		data, err = os.ReadFile(f.expect)
	}
	if err != nil {
		return fmt.Errorf("--expect: neither a name in the corpus nor a file: %w", err)
	}
	if f.Promise, err = flows.ReadPromise(data, cases); err != nil {
		return fmt.Errorf("--expect %s: %w", f.expect, err)
	}
	return nil
}

// selected returns the cases that --corpus and --case select, and reads the promise of --expect.
func (f *flags) selected() (cases []flows.Case, err error) {
	if cases, err = flows.ReadCases(f.corpusFS()); err != nil {
		return nil, err
	}
	if err := f.readPromise(cases); err != nil {
		return nil, err
	}
	pattern, err := regexp.Compile("^(?:" + f.cases + ")$")
	if err != nil {
		return nil, fmt.Errorf("--case: %w", err)
	}
	if f.cases != "" {
		cases = slices.DeleteFunc(cases, func(c flows.Case) bool { return !pattern.MatchString(c.Name) })
	}
	if len(cases) == 0 {
		return nil, fmt.Errorf("no case has a name like %q", f.cases)
	}
	return cases, nil
}
