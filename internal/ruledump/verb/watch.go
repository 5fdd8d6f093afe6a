package verb

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
)

func newWatchCommand() *cobra.Command {
	var options watchOptions
	var refused refusedOptions
	var where source
	var onlyRefused bool
	format := newFormat("text", "json")
	cmd := &cobra.Command{
		Use:   "watch [--refused [NAME]]",
		Short: "Tell of each change to the proxy's tables, or of each refused packet, as it happens",
		Long: `watch prints each commit that changes the proxy's tables as the kernel announces it: when it
was, which process made it, what started that process and in which unit or container it runs (as
far as /proc still has the process), whether it was the proxy, and what changed. It ends with
Ctrl-C.
It needs CAP_NET_ADMIN.

While it runs, everybody on this machine pays, in all network namespaces: the kernel describes
each element of each commit, in 8 KB of memory until the commit ends. A commit of 200,000
elements took 1.6 times as long, and 1.6 GB. So do not leave it running for long.
What packets add to maps of session affinity is no commit and is not announced.

With --refused it prints the packets of clients that the proxy's rules refuse or drop instead:
the client, the Service, the address that it dialed, and the reason in the words of explain.
For that it changes the kernel: it adds a table of its own, ruledump-refused-PID, with a copy of
the rules that refuse, which mark the packet ("meta nftrace set 1") just before the proxy's
rules see it, each rule at most --limit a second. So the kernel reports the rule that refuses
it. The table belongs to watch's socket, so the kernel removes it when watch ends, even by
kill -9. So it needs Linux 5.12, and a terminal or --yes. Packets that are served, and later
packets of a connection, are not marked. Where the rules change, the copy follows after a
second; with many Services later, since reading them may take a tenth of the time.`,
		Example: `  # Who flushes the rules?
  ruledump watch

  # Changes that the proxy did not make, as JSON, one a line.
  ruledump watch -o json | jq -c 'select(.foreign)'

  # Whose packets are refused, and why?
  ruledump watch --refused

  # Clients of a namespace's Services, for a minute.
  ruledump watch --refused -n shop --for 1m --yes -o json | jq -r '.client, .reason'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if onlyRefused {
				if err := needYes(refused.yes, "watch --refused"); err != nil {
					return err
				}
				filter, err := where.filter(args)
				if err != nil {
					return err
				}
				out := cmd.OutOrStdout()
				return watchRefused(cmd, &where, filter, refused, func(f *refusal) error { return format.stream(out, f) })
			}
			if err := checkNotRefused(cmd, args); err != nil {
				return err
			}
			conn, err := nft.Dial(nft.Config{})
			if err != nil {
				return err
			}
			defer conn.Close()
			out := cmd.OutOrStdout()
			options.serviceProxyName = where.serviceProxyName
			begun := func() { fmt.Fprintln(cmd.ErrOrStderr(), watchCost) }
			return watch(cmd.Context(), conn, options, begun, func(c *change) error { return format.stream(out, c) })
		},
	}
	format.addTo(cmd)
	where.addKernel(cmd)
	flags := cmd.Flags()
	flags.StringVar(&options.proxy, "proxy", "kube-proxy", "name of the proxy's process; commits of others count as external")
	flags.IntVar(&options.maxParts, "parts", 20, "how many parts of each commit to print")
	flags.BoolVar(&onlyRefused, "refused", false, "print packets of clients that are refused or dropped, with the reason")
	flags.StringVar(&refused.from, "from", "", "with --refused, source: ADDRESS, or a prefix such as 10.244.0.0/16; all if left out")
	flags.DurationVar(&refused.time, "for", 0, "with --refused, end after this time; 0 for never")
	flags.IntVar(&refused.limit, "limit", 100, "with --refused, how many packets a second each rule may mark")
	flags.BoolVar(&refused.yes, "yes", false, "with --refused, add the table also where standard input is no terminal")
	return cmd
}

// checkNotRefused refuses what belongs to --refused alone.
func checkNotRefused(cmd *cobra.Command, args []string) (err error) {
	if len(args) > 0 {
		return fmt.Errorf("%s names a Service, which needs --refused", args[0])
	}
	for _, name := range []string{"from", "for", "limit", "yes", "namespace", "all-namespaces"} {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s needs --refused", name)
		}
	}
	return nil
}

// change is one commit that concerns the proxy's tables.
type change struct {
	document
	Time       time.Time `json:"time"`       // time at which the notice arrived
	Generation uint32    `json:"generation"` // the kernel's count of commits
	// Process: the name of the process that committed, at most 15 bytes; without pid, of its thread
	Process string `json:"process"`
	// PID is absent if the process has ended, or if /proc is not that of the initial PID namespace.
	PID uint32 `json:"pid,omitempty"`
	TID uint32 `json:"tid"` // the id of the thread that committed, in the initial PID namespace
	committer
	Foreign bool `json:"foreign"` // the process does not have the proxy's name
	// Lost: parts of commits were lost, because they were larger than a socket holds
	Lost   bool           `json:"lost,omitempty"`
	Counts map[string]int `json:"counts"` // added and deleted parts by kind, such as "+element"
	Parts  []string       `json:"parts"`  // the first parts
}

// watchOptions configures watch.
type watchOptions struct {
	// proxy is the name of the proxy's process.
	proxy string
	// serviceProxyName is that of a proxy beside another one, which names the tables.
	serviceProxyName string
	// maxParts bounds the parts of a commit that are kept, and so the memory.
	maxParts int
}

// watchCost says what a member of the group of commits costs.
const watchCost = "ruledump: while this runs, the kernel describes each element of each commit on this machine, in all network namespaces, in 8 KB of memory each; large commits take longer"

// watch calls begun when it hears of commits, and then tell for each one that changes the proxy's tables, until ctx ends or
// tell returns an error.
func watch(ctx context.Context, conn *nft.Conn, o watchOptions, begun func(), tell func(*change) error) error {
	table := compiler.TableNameFor(o.serviceProxyName)
	m, err := conn.Monitor(ctx, table)
	if err != nil {
		return err
	}
	defer m.Close()
	begun()
	for {
		c := &change{document: documentOf("Change"), Counts: map[string]int{}, Parts: []string{}}
		commit, err := c.collect(ctx, m, table, o.maxParts)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		c.Time, c.Generation, c.Process, c.PID, c.TID, c.Lost = time.Now().UTC(), commit.Generation, commit.Process, commit.PID, commit.TID, commit.Lost
		c.committer = findCommitter(c.PID)
		c.Foreign = !commit.Lost && commit.Process != o.proxy
		if len(c.Counts) == 0 && !c.Lost {
			continue
		}
		if err := tell(c); err != nil {
			return err
		}
	}
}

// collect adds the parts of the next commit, and returns its end.
func (c *change) collect(ctx context.Context, m *nft.Monitor, table string, maxParts int) (nft.Event, error) {
	for {
		e, err := m.Next(ctx)
		if err != nil || e.Kind == nft.EventGeneration {
			return e, err
		}
		if e.Table != table {
			continue
		}
		sign := "+"
		if e.Deleted {
			sign = "-"
		}
		c.Counts[sign+e.Kind]++
		if len(c.Parts) < maxParts {
			c.Parts = append(c.Parts, e.String())
		}
	}
}

// Text implements View.
func (c *change) Text(p *Page) {
	who := nft.Event{Process: c.Process, PID: c.PID, TID: c.TID}.Who() + c.committer.text()
	switch {
	case c.Lost:
		who = "unknown: announcements were lost"
	case c.Foreign:
		who = p.bad("external: " + who)
	}
	var counts []string
	total := 0
	for _, kind := range slices.Sorted(maps.Keys(c.Counts)) {
		counts = append(counts, fmt.Sprintf("%s %d", kind, c.Counts[kind]))
		total += c.Counts[kind]
	}
	p.printf("%s generation %d by %s: %s\n", c.Time.Format(time.RFC3339Nano), c.Generation, who, strings.Join(counts, ", "))
	for _, part := range c.Parts {
		p.printf("  %s\n", part)
	}
	p.more(total-len(c.Parts), "  … and %d more\n")
}
