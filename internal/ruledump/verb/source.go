package verb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nodelocal"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// source is the flags that say whose rules to look at.
type source struct {
	manifests, kubeconfig, dump string
	nodeLocal                   string
	files                       nodelocal.TLSFiles
	node, config                string
	serviceProxyName            string
	// clients wants the clients of all maps of session affinity, of a kernel.
	clients      bool
	proxyAddress string
	// names wants the names of pods and nodes, by the running proxy's own access to the API server.
	names     bool
	namespace string
	// allNamespaces overrides namespace, as kubectl's flag does.
	allNamespaces bool
	// unserved selects frontends without an endpoint for some clients.
	unserved bool

	// readsActual says that the command has rules that are read, and not only compiled.
	readsActual bool

	// conn is open if the rules are those of the running kernel.
	conn *nft.Conn
	// proxy is the running proxy beside the kernel's rules that were read; nil if none is known.
	proxy *ruledump.Proxy
	// noProxy says why proxy is nil.
	noProxy error
	// warned, if set, gets the warnings of compilation in place of standard error.
	warned func(text string)
}

const sourceHelp = `
The rules are those of the running kernel, in this network namespace (which needs
CAP_NET_ADMIN), or of one of --manifests, --kubeconfig, --node-local (each with --node) and
--dump. Only the kernel takes privileges.`

// addWanted adds the flags for rules that are compiled. If the command has no other source, otherwise says why it needs
// one of them.
func (s *source) addWanted(cmd *cobra.Command, otherwise string) {
	flags := cmd.Flags()
	flags.StringVar(&s.manifests, "manifests", "",
		"compile the manifests in this directory (.yaml, .yml, .json), or in one such file")
	flags.StringVar(&s.kubeconfig, "kubeconfig", "",
		"compile the objects of a cluster, which are listed once and not changed; without --node, where rules are read, name pods and nodes after its EndpointSlices")
	flags.StringVar(&s.nodeLocal, "node-local", "", "compile what a node-local server has for the node, at unix:///PATH, or at tcp://HOST:PORT with the --node-local-*-file flags")
	flags.StringVar(&s.files.Cert, "node-local-cert-file", "", "this side's certificate for tcp://, in PEM")
	flags.StringVar(&s.files.Key, "node-local-key-file", "", "the key of that certificate, in PEM")
	flags.StringVar(&s.files.CA, "node-local-ca-file", "", "the authority that signs the server's certificate, in PEM")
	flags.StringVar(&s.node, "node", "", "name of the Node to compile for")
	flags.StringVar(&s.config, "config", "", "KubeProxyConfiguration file, v1alpha1 or v1alpha2, to compile with; by default kube-proxy's defaults, and for diff the settings of the running proxy")
	addServiceProxyName(flags, &s.serviceProxyName)
	for _, name := range []string{"manifests", "kubeconfig", "config", "node-local-cert-file", "node-local-key-file", "node-local-ca-file"} {
		_ = cmd.MarkFlagFilename(name)
	}
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if otherwise != "" && !s.isCompiled() {
			return errors.New("give " + compiledSources + otherwise)
		}
		return s.checkWanted()
	}
}

// addServiceProxyName adds the flag that names a proxy beside another one.
func addServiceProxyName(flags *pflag.FlagSet, name *string) {
	flags.StringVar(name, "service-proxy-name", "",
		"the proxy with this --service-proxy-name, whose tables are called kube-proxy.NAME")
}

// addActual adds the flags for rules that are read: from the kernel, or elsewhere before.
func (s *source) addActual(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.dump, "dump", "",
		`read what "ruledump live -o json" or "ruledump report" wrote, perhaps on another node; - is standard input`)
	_ = cmd.MarkFlagFilename("dump", "json", "tar.gz")
	s.addProxyAddress(cmd)
}

// addTo adds all flags, and makes the command refuse combinations that make no sense.
func (s *source) addTo(cmd *cobra.Command) {
	s.addWanted(cmd, "")
	s.addActual(cmd)
	s.addNames(cmd)
	cmd.Long = strings.TrimRight(cmd.Long, "\n") + "\n" + sourceHelp
	check := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if s.dump != "" && s.isCompiled() {
			return errors.New("--dump is another source than --manifests, --kubeconfig and --node-local: give one")
		}
		return check(cmd, args)
	}
}

// addNames adds the flag of a command that names pods and nodes beside rules that are read.
func (s *source) addNames(cmd *cobra.Command) {
	s.readsActual = true
	cmd.Flags().BoolVar(&s.names, "names", false, "name pods and nodes as --kubeconfig does, with the running proxy's own access to the API server")
}

// addNamesTo adds all flags, and lets the command take a filter as its argument.
func (s *source) addNamesTo(cmd *cobra.Command) {
	s.addFilter(cmd)
	s.addTo(cmd)
}

// addFilter adds the flags of commands that take a filter.
func (s *source) addFilter(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.namespace, "namespace", "n", "", "only Services in this namespace")
	cmd.Flags().BoolVarP(&s.allNamespaces, "all-namespaces", "A", false,
		"Services in all namespaces, which is the default, whatever --namespace says")
	cmd.Long = strings.TrimRight(cmd.Long, "\n") + "\n" + filterHelp
	cmd.ValidArgsFunction = s.complete
}

// filter reads the argument and the flags that select Services.
func (s *source) filter(args []string) (Filter, error) {
	if s.allNamespaces {
		s.namespace = ""
	}
	filter, err := parseFilter(s.namespace, args)
	filter.unserved = s.unserved
	return filter, err
}

// complete completes the name of a Service from the rules.
func (s *source) complete(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer s.close()
	rules, err := s.open(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	frontends, err := frontendsOf(rules, Filter{Namespace: s.namespace})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string // the frontends are sorted by name
	for _, f := range frontends {
		namespace, name, _ := splitServicePort(f.ServicePort)
		if s.namespace == "" {
			name = namespace + "/" + name
		}
		names = append(names, name)
	}
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// compiledSources are the flags of which one says what to compile.
const compiledSources = "--manifests, --kubeconfig or --node-local"

func (s *source) isCompiled() bool { return s.compiledFrom() > 0 }

// compiledFrom counts the flags that say what to compile.
func (s *source) compiledFrom() (n int) {
	for _, value := range []string{s.manifests, s.kubeconfig, s.nodeLocal} {
		if value != "" {
			n++
		}
	}
	if s.kubeconfigNames() {
		n--
	}
	return n
}

// kubeconfigNames reports whether --kubeconfig says where names come from, and not what to compile.
func (s *source) kubeconfigNames() bool {
	return s.readsActual && s.kubeconfig != "" && s.node == "" && s.config == ""
}

// checkWanted refuses flags for compiled rules that do not belong together.
func (s *source) checkWanted() error {
	switch {
	case s.compiledFrom() > 1:
		return errors.New("--manifests, --kubeconfig and --node-local are different sources: give one")
	case s.nodeLocal == "" && s.files.Any():
		return errors.New("the --node-local-*-file flags say how to reach a node-local server: give --node-local too")
	case strings.HasPrefix(s.nodeLocal, "tcp://") && !s.files.Any():
		return fmt.Errorf("--node-local: %s needs TLS with a client certificate: set --node-local-cert-file, --node-local-key-file, --node-local-ca-file", s.nodeLocal)
	case s.isCompiled() && s.node == "":
		return errors.New("--node is missing: rules are compiled for one Node")
	case !s.isCompiled() && s.node != "":
		return errors.New("--node says what to compile for: give " + compiledSources + " too")
	case !s.isCompiled() && s.config != "":
		return errors.New("--config says how to compile: give " + compiledSources + " too")
	}
	return nil
}

// shows makes cmd get the rules and show a view of them.
func (s *source) shows(cmd *cobra.Command, format *outputFormat, view func(*cobra.Command, *ruledump.Snapshot, Filter) (View, error)) *cobra.Command {
	format.addTo(cmd)
	return s.reads(cmd, func(cmd *cobra.Command, rules *ruledump.Snapshot, filter Filter) error {
		v, err := view(cmd, rules, filter)
		if err != nil {
			return err
		}
		return format.show(cmd.OutOrStdout(), v)
	})
}

// reads makes cmd run with the rules and the filter of its arguments.
func (s *source) reads(cmd *cobra.Command, run func(*cobra.Command, *ruledump.Snapshot, Filter) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter, err := s.filter(args)
		if err != nil {
			return err
		}
		defer s.close()
		rules, err := s.open(cmd)
		if err != nil {
			return err
		}
		return run(cmd, rules, filter)
	}
	return cmd
}

func (s *source) close() {
	if s.conn != nil {
		_ = s.conn.Close() // nothing was written
	}
}

// open gets the rules. It is an error if there are none.
func (s *source) open(cmd *cobra.Command) (*ruledump.Snapshot, error) {
	if s.isCompiled() {
		return s.compile(cmd)
	}
	rules, err := s.actual(cmd)
	if err == nil {
		err = rules.NeedTables(cmd.Context())
	}
	if err == nil {
		s.addPlaces(cmd, rules)
		if s.abandoned() {
			fmt.Fprintln(cmd.ErrOrStderr(), "ruledump: no proxy keeps these rules: "+s.whyAbandoned())
		}
	}
	return rules, err
}

// abandoned reports whether no proxy keeps the kernel's rules: nobody listens at its address, and no process has its name.
func (s *source) abandoned() bool {
	return errors.Is(s.noProxy, unix.ECONNREFUSED) && len(runningProxies()) == 0
}

func (s *source) whyAbandoned() string {
	return fmt.Sprintf("nobody listens at %s (--proxy-address names another address), and no process here is called kube-proxy", s.proxyAddress)
}

// namesPatience bounds the time for the names of pods. Without them a command says what it knows.
const namesPatience = 10 * time.Second

// addPlaces names pods and nodes, if the flags want it. A cluster that does not answer fails no command.
func (s *source) addPlaces(cmd *cobra.Command, rules *ruledump.Snapshot) {
	kubeconfig := s.kubeconfig
	switch {
	case !s.names && !s.kubeconfigNames():
		return
	case kubeconfig == "" && s.proxy != nil:
		kubeconfig = s.proxy.Config.ClientConnection.Kubeconfig
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), namesPatience, fmt.Errorf("no whole answer within %v", namesPatience))
	defer cancel()
	if err := rules.AddPlaces(ctx, kubeconfig); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "ruledump: the names of pods are not known: %v\n", err)
	}
}

// compilation says for which node and with which settings to compile.
func (s *source) compilation() ruledump.Compilation {
	return ruledump.Compilation{Node: s.node, Config: s.config, ServiceProxyName: s.serviceProxyName, Proxy: s.proxy}
}

// compile compiles the desired rules.
func (s *source) compile(cmd *cobra.Command) (*ruledump.Snapshot, error) {
	how := s.compilation()
	if how.Warn = s.warned; how.Warn == nil {
		how.Warn = func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "ruledump: "+text) }
	}
	switch {
	case s.kubeconfig != "":
		return ruledump.FromCluster(cmd.Context(), s.kubeconfig, how)
	case s.nodeLocal != "":
		rules, err := ruledump.FromNodeLocal(cmd.Context(), s.nodeLocal, s.files, how)
		if errors.Is(err, nodelocal.ErrTarget) {
			err = fmt.Errorf("--node-local: %w", err)
		}
		return rules, err
	}
	return ruledump.FromManifests(s.manifests, how)
}

// actual reads the rules of a dump, or of the kernel, which may have none.
func (s *source) actual(cmd *cobra.Command) (*ruledump.Snapshot, error) {
	if s.dump != "" {
		return s.readDump(cmd)
	}
	var err error
	if s.conn, err = nft.Dial(nft.Config{}); err != nil {
		return nil, err
	}
	live, err := ruledump.FromKernel(cmd.Context(), s.conn, s.serviceProxyName, s.clients)
	if err == nil {
		s.askProxy(cmd, live)
	}
	return live, err
}

// rereadKernel returns the rules that the kernel has now, with the node's name of those that were read before; if nobody
// has committed since, or others commit too often, it returns these.
func rereadKernel(ctx context.Context, conn *nft.Conn, before *ruledump.Snapshot) (*ruledump.Snapshot, error) {
	generation, err := conn.Generation(ctx)
	if err != nil || generation == before.Generation {
		return before, err
	}
	now, err := ruledump.FromKernel(ctx, conn, before.ServiceProxyName, false)
	if errors.Is(err, nft.ErrGenerationMoved) {
		return before, nil
	}
	if err != nil {
		return nil, err
	}
	now.Node, now.NodeSource, now.Places, now.Unready = before.Node, before.NodeSource, before.Places, before.Unready
	return now, nil
}

// askProxy asks the running proxy for the node's name, if rules of a kernel were found.
func (s *source) askProxy(cmd *cobra.Command, live *ruledump.Snapshot) {
	if s.proxyAddress == "" {
		return
	}
	if s.serviceProxyName != "" && !cmd.Flags().Changed("proxy-address") {
		s.noProxy = fmt.Errorf("proxy %s has another metrics address than %s", s.serviceProxyName, s.proxyAddress)
		return
	}
	if s.proxy, s.noProxy = ruledump.RunningProxy(cmd.Context(), s.proxyAddress); s.proxy != nil {
		live.Node, live.NodeSource = s.proxy.Node, ruledump.NodeFromProxy
	}
}

func (s *source) readDump(cmd *cobra.Command) (*ruledump.Snapshot, error) {
	in, err := input(cmd, s.dump)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	dumped, err := ruledump.FromDump(in)
	if err != nil && s.dump != "-" {
		err = fmt.Errorf("%s: %w", s.dump, err)
	}
	return dumped, err
}

// input opens a file; "-" is standard input.
func input(cmd *cobra.Command, name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(cmd.InOrStdin()), nil
	}
	return os.Open(name)
}
