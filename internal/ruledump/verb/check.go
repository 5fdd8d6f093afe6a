package verb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/spf13/cobra"
)

func newCheckCommand() *cobra.Command {
	var from source
	var collects, dial bool
	cmd := &cobra.Command{
		Use:   "check [NAME] | check --collect FILE...",
		Short: "Say what does not work on this node, for whom, and why",
		Long: `check walks the first packet of each kind of client to each address of each Service through the
rules of all programs and the routes, as explain does: pods of this node and of others, the
node itself, and clients outside behind each device. It looks at the node's settings,
connection tracking and the proxy too. It prints one line for each cause, the worst first:
what is broken, which Services it hits, for whom, and the command that shows more.

"broken" is a client that should be served and is not. "remark" is worth knowing, or what the
Service's owner asks for: policy Local without an endpoint here, source ranges, and a firewall
that closes node ports to clients outside. -o wide adds why.

--dial opens a TCP connection from the node to each endpoint, to at most 200, for a second each:
a pod that refuses listens at another port. --collect reads what check -o json printed on many
nodes, and prints one table.

The exit status is 0 if nothing is broken, 1 if something is, and 2 if check could not find out.`,
		Example: `  # What does not work on this node?
  ruledump check

  # Only this Service; does each of its pods listen?
  ruledump check shop/web --dial

  # What a node had, elsewhere.
  ruledump check --dump node-1.tar.gz

  # Of all nodes.
  kubectl nftproxy check`,
	}
	from.addNamesTo(cmd)
	cmd.Flags().BoolVar(&collects, "collect", false, "read what other nodes printed with -o json, from files, or - for standard input")
	cmd.Flags().BoolVar(&dial, "dial", false, "open TCP connections to endpoints from this node: to at most 200, for one second each")
	format := newFormat("text", "wide", "json", "html")
	format.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var answer interface {
			View
			verdict() verdict
		}
		var err error
		if collects {
			var byNode map[string]*Check
			byNode, err = collect[Check](cmd, args, "Check")
			answer = checkTableOf(byNode)
		} else {
			answer, err = from.check(cmd, args, dial)
		}
		if err == nil {
			err = format.show(cmd.OutOrStdout(), answer)
		}
		if err != nil {
			return err
		}
		return answer.verdict().status()
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case collects && len(args) == 0:
			return errors.New("--collect needs files, or - for standard input")
		case !collects && len(args) > 1:
			return fmt.Errorf("want at most one name, and got %d", len(args))
		}
		return nil
	}
	for _, name := range []string{"manifests", "kubeconfig", "node-local", "dump"} {
		cmd.MarkFlagsMutuallyExclusive("dial", name)
		cmd.MarkFlagsMutuallyExclusive("collect", name)
	}
	cmd.MarkFlagsMutuallyExclusive("collect", "dial")
	return cmd
}

// check checks what the flags say.
func (s *source) check(cmd *cobra.Command, args []string, dial bool) (*Check, error) {
	filter, err := s.filter(args)
	if err != nil {
		return nil, err
	}
	defer s.close()
	var warnings []string
	s.warned = func(text string) { warnings = append(warnings, text) }
	rules, err := s.openFor(cmd)
	if err != nil {
		return nil, err
	}
	if s.conn != nil {
		rules.AddOthers(cmd.Context(), s.conn, false)
	}
	progress := &progress{to: cmd.ErrOrStderr()}
	e, err := newCheck(cmd.Context(), rules, filter, progress.show)
	progress.end()
	if err != nil {
		return nil, err
	}
	e.live = s.conn != nil
	for _, text := range warnings {
		e.fact(levelRemark, text, "the proxy logs the same", "")
	}
	e.addFacts()
	if !s.isCompiled() {
		e.addProxy(cmd.Context(), s)
		e.addConntrack(cmd.Context(), s)
	}
	if dial {
		e.dial(cmd.Context())
	}
	return e.finish(), nil
}

// openFor gets the rules as open does. A kernel without tables is a finding.
func (s *source) openFor(cmd *cobra.Command) (*ruledump.Snapshot, error) {
	if s.isCompiled() {
		return s.compile(cmd)
	}
	rules, err := s.actual(cmd)
	if err == nil {
		s.addPlaces(cmd, rules)
	}
	return rules, err
}

// newCheck walks a packet of each kind of client to each frontend of the Services that the filter selects. progress is called
// with the numbers of frontends that are done and of all, from several goroutines.
func newCheck(ctx context.Context, s *ruledump.Snapshot, filter Filter, progress func(done, all int)) (*checker, error) {
	all, err := s.Frontends()
	frontends := slices.DeleteFunc(slices.Clone(all), func(f *compiler.Frontend) bool { return !filter.selects(f, s.Addresses) })
	if err == nil && len(frontends) == 0 && !filter.isAll() && len(s.Tables) > 0 {
		err = filter.notFound()
	}
	if err != nil {
		return nil, err
	}
	e := newChecker(s, all, frontends)
	if err := s.NeedTables(ctx); err != nil {
		e.fact(levelBroken, "the kernel has no table of the proxy", err.Error(), "ruledump watch; kubectl -n kube-system get pods -o wide")
	}
	e.walk(ctx, progress)
	return e, nil
}

// progress says on a terminal how far a check is.
type progress struct {
	to   io.Writer
	last atomic.Int64
}

// show prints the numbers, at most ten times a second.
func (p *progress) show(done, all int) {
	now, last := time.Now().UnixMilli(), p.last.Load()
	if now-last < 100 || !coloursFor(p.to) || !p.last.CompareAndSwap(last, now) {
		return
	}
	fmt.Fprintf(p.to, "\rchecked %d of %d addresses of Services", done, all)
}

// end removes the line.
func (p *progress) end() {
	if p.last.Load() > 0 {
		fmt.Fprint(p.to, "\r\x1b[K")
	}
}
