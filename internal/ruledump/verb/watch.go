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
			return watch(cmd.Context(), conn, options, func(c *change) error { return format.stream(out, c) })
		},
	}
	format.addTo(cmd)
	cmd.Flags().StringVar(&options.proxy, "proxy", "kube-proxy", "name of the proxy's process; commits of others count as external")
	addServiceProxyName(cmd.Flags(), &options.serviceProxyName)
	cmd.Flags().IntVar(&options.maxParts, "parts", 20, "how many parts of each commit to print")
	return cmd
}

// change is one commit that concerns the proxy's tables.
type change struct {
	document
	Time       time.Time `json:"time"`
	Generation uint32    `json:"generation"`
	// Process is the name of the process that committed, at most 15 bytes; where PID is 0, the name of its thread.
	Process string `json:"process"`
	// PID is 0 if the process has ended, or if /proc is not that of the initial PID namespace.
	PID     uint32         `json:"pid,omitempty"`
	TID     uint32         `json:"tid"`
	Foreign bool           `json:"foreign"`
	Lost    bool           `json:"lost,omitempty"`
	Counts  map[string]int `json:"counts"`
	Parts   []string       `json:"parts"`
}

// watchOptions configures watch.
type watchOptions struct {
	// proxy is the name of the proxy's process.
	proxy string
	// serviceProxyName is that of a proxy beside another one, which names the tables.
	serviceProxyName string
	// maxParts is how many parts of a commit are kept, which bounds the memory.
	maxParts int
}

// watch calls tell for each commit that changes the proxy's tables, until ctx ends or tell returns an error.
func watch(ctx context.Context, conn *nft.Conn, o watchOptions, tell func(*change) error) error {
	table := compiler.TableNameFor(o.serviceProxyName)
	m, err := conn.Monitor(ctx, table)
	if err != nil {
		return err
	}
	defer m.Close()
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
	who := nft.Event{Process: c.Process, PID: c.PID, TID: c.TID}.Who()
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
