package verb

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
)

func newWatchCommand() *cobra.Command {
	var options WatchOptions
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
			return Watch(cmd.Context(), conn, options, func(c *Change) error {
				if format.value == "json" {
					return json.NewEncoder(out).Encode(c)
				}
				return c.Text(out, coloursFor(out))
			})
		},
	}
	format.addTo(cmd)
	cmd.Flags().StringVar(&options.Proxy, "proxy", "kube-proxy", "name of the proxy's process; commits of others count as external")
	addServiceProxyName(cmd.Flags(), &options.ServiceProxyName)
	cmd.Flags().IntVar(&options.MaxParts, "parts", 20, "how many parts of each commit to print")
	return cmd
}

// Change is one commit that concerns the proxy's tables.
type Change struct {
	document
	// Time is when the notice arrived.
	Time time.Time `json:"time"`
	// Generation is the kernel's count of commits.
	Generation uint32 `json:"generation"`
	// Process is the name of the process that committed, at most 15 bytes; where PID is 0, the name of its thread.
	Process string `json:"process"`
	// PID is the id of that process. It is 0 if the process has ended, or if /proc is not that of the initial PID namespace.
	PID uint32 `json:"pid,omitempty"`
	// TID is the id of the thread that committed, in the initial PID namespace.
	TID uint32 `json:"tid"`
	// Foreign says that the process does not have the proxy's name.
	Foreign bool `json:"foreign"`
	// Lost says that parts of this and perhaps of other commits were lost, because they were larger than a socket holds.
	Lost bool `json:"lost,omitempty"`
	// Counts counts added and deleted parts by kind, such as "+element".
	Counts map[string]int `json:"counts"`
	// Parts are the first parts, at most WatchOptions.MaxParts.
	Parts []string `json:"parts"`
}

// WatchOptions configures Watch.
type WatchOptions struct {
	// Proxy is the name of the proxy's process.
	Proxy string
	// ServiceProxyName is that of a proxy beside another one, which names the tables.
	ServiceProxyName string
	// MaxParts is how many parts of a commit are kept, which bounds the memory.
	MaxParts int
}

// Watch calls tell for each commit that changes the proxy's tables, until ctx ends or tell returns an error.
func Watch(ctx context.Context, conn *nft.Conn, o WatchOptions, tell func(*Change) error) error {
	table := compiler.TableNameFor(o.ServiceProxyName)
	m, err := conn.Monitor(ctx, table)
	if err != nil {
		return err
	}
	defer m.Close()
	for {
		c := &Change{document: documentOf("Change"), Counts: map[string]int{}, Parts: []string{}}
		commit, err := c.collect(ctx, m, table, o.MaxParts)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		c.Time, c.Generation, c.Process, c.PID, c.TID, c.Lost = time.Now().UTC(), commit.Generation, commit.Process, commit.PID, commit.TID, commit.Lost
		c.Foreign = !commit.Lost && commit.Process != o.Proxy
		if len(c.Counts) == 0 && !c.Lost {
			continue
		}
		if err := tell(c); err != nil {
			return err
		}
	}
}

// collect adds the parts of the next commit, and returns its end.
func (c *Change) collect(ctx context.Context, m *nft.Monitor, table string, maxParts int) (nft.Event, error) {
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

// Text prints the change for people.
func (c *Change) Text(w io.Writer, s Colours) error {
	var b strings.Builder
	who := nft.Event{Process: c.Process, PID: c.PID, TID: c.TID}.Who()
	switch {
	case c.Lost:
		who = "unknown: announcements were lost"
	case c.Foreign:
		who = s.Bad("external: " + who)
	}
	var counts []string
	total := 0
	for _, kind := range slices.Sorted(maps.Keys(c.Counts)) {
		counts = append(counts, fmt.Sprintf("%s %d", kind, c.Counts[kind]))
		total += c.Counts[kind]
	}
	fmt.Fprintf(&b, "%s generation %d by %s: %s\n", c.Time.Format(time.RFC3339Nano), c.Generation, who, strings.Join(counts, ", "))
	for _, p := range c.Parts {
		fmt.Fprintf(&b, "  %s\n", p)
	}
	if more := total - len(c.Parts); more > 0 {
		fmt.Fprintf(&b, "  … and %d more\n", more)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
