package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// topOptions are the flags of the top command.
type topOptions struct {
	sort     string
	interval time.Duration
	rounds   int
	limit    int
}

func newTopCommand() *cobra.Command {
	var from source
	var o topOptions
	format := newFormat("table", "json")
	cmd := &cobra.Command{
		Use:   "top [NAME]",
		Short: "Show the traffic of Services a second, live",
		Long: `top shows the new connections, packets and bytes a second of each Service port that had traffic
within the last minute, and the packets of clients that were refused or dropped, with the
reason. On a terminal the table changes in place: c, p, b, r and n sort by connections,
packets, bytes, refusals and name, / filters by a part of the name, q ends. Elsewhere it
prints a table each round, or with -o json a document on a line of its own. It needs
CAP_NET_ADMIN.

Where the proxy counts (feature gate NFTProxyServiceCounters), the numbers are from its
counters. Else they are from conntrack's events, which have connections alone; refusals are
always from counters (NFTProxyRefusedCounters, which the other gate includes). The Service is
"-" where a client dials an address that no Service holds.

A round takes longer than --interval says where reading the counters takes more than a
fifth of it.`,
		Example: `  # What is busy?
  ruledump top

  # Which Services of a namespace get most bytes, over three rounds of ten seconds?
  ruledump top -n shop --sort bytes --interval 10s --rounds 3 | cat

  # New connections a second, for a script.
  ruledump top -o json shop/web | jq '.services[].connections'`,
		Args: cobra.MaximumNArgs(1),
	}
	from.addKernel(cmd)
	format.addTo(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.sort, "sort", sortKeys[0], "sort by "+strings.Join(sortKeys, ", "))
	flags.DurationVar(&o.interval, "interval", time.Second, "time of a round, at least 1s")
	flags.IntVar(&o.rounds, "rounds", 0, "end after this many rounds; 0 for never")
	flags.IntVar(&o.limit, "limit", 20, "how many lines of each table to print where that is no terminal; 0 for all")
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(sortKeys, cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		switch {
		case !slices.Contains(sortKeys, o.sort):
			return fmt.Errorf("unknown --sort %q; want %s", o.sort, strings.Join(sortKeys, ", "))
		case o.interval < time.Second:
			return fmt.Errorf("--interval %v is less than 1s", o.interval)
		case o.rounds < 0:
			return fmt.Errorf("--rounds %d is negative", o.rounds)
		case o.limit < 0:
			return fmt.Errorf("--limit %d is negative", o.limit)
		}
		return nil
	}
	return from.indexes(cmd, true, func(cmd *cobra.Command, index *flowIndex, filter Filter) error {
		m, err := newMeter(index, filter, o)
		if err != nil {
			return err
		}
		ctx, stop := context.WithCancel(cmd.Context())
		defer stop()
		out := cmd.OutOrStdout()
		show := func(r *Rates) error { return format.stream(out, r) }
		if file := terminalOf(out); file != nil && format.value == "table" {
			s, err := newScreen(file, stop, o)
			if err != nil {
				return err
			}
			defer s.close()
			show = s.show
		}
		err = m.run(ctx, show)
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
}

// sortKeys are the values of --sort. Their first letters are keys on a terminal.
var sortKeys = []string{"connections", "packets", "bytes", "refused", "name"}

// Rates holds what the Service ports of a node did a second, in one round.
type Rates struct {
	nodeDocument
	Time time.Time `json:"time"` // end of the round
	// From is "counters" of the rules (feature gate NFTProxyServiceCounters), or "events" of conntrack, which have
	// connections alone.
	From    string `json:"from" jsonschema:"enum=counters,enum=events"`
	Problem string `json:"problem,omitempty"` // why the numbers of this round are not complete
	// Services are the Service ports that had traffic within the last minute.
	Services []*serviceRate `json:"services"`

	options topOptions
}

// serviceRate holds the rates of one Service port, per second.
type serviceRate struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Port      string `json:"port,omitempty"` // name of the Service port; absent if it has none
	traffic
	// Refused are packets of clients that were refused or dropped, where the rules count them.
	Refused []refusedRate `json:"refused,omitempty"`
	// rounds are those of the last minute, the oldest first.
	rounds []traffic
	// name is the Service port, as the rules name it.
	name string
}

// refusedRate holds the packets refused for one reason, per second.
type refusedRate struct {
	Reason  string  `json:"reason" jsonschema:"enum=no-endpoints,enum=policy-local,enum=source-not-allowed,enum=unknown-port,enum=unassigned-address,enum=unknown-connection,enum=foreign-rule"`
	Packets float64 `json:"packets"` // packets a second
}

func (r *Rates) sort(by string) {
	slices.SortFunc(r.Services, func(a, b *serviceRate) int {
		return cmp.Or(cmp.Compare(b.by(by), a.by(by)), cmp.Compare(a.name, b.name))
	})
}

// Text implements View.
func (r *Rates) Text(p *Page) {
	p.printf("%s\n", r.title())
	shown := len(r.Services)
	if r.options.limit > 0 {
		shown = min(shown, r.options.limit)
	}
	r.print(p, r.Services[:shown], r.options.sort)
	p.more(len(r.Services)-shown, "… and %d more; --limit 0 prints all\n")
	p.WriteByte('\n')
}

func (r *Rates) title() string {
	sources := map[string]string{"counters": "by the rules' counters", "events": "by conntrack's events"}
	text := fmt.Sprintf("%s node %s, %d Service ports with traffic, %s", r.Time.Local().Format(time.TimeOnly), r.nodeText(), len(r.Services), sources[r.From])
	if r.Problem != "" {
		text += "; " + r.Problem
	}
	return text
}

// print prints a table, in which the last minute is that of the number which the table is sorted by.
func (r *Rates) print(p *Page, services []*serviceRate, sorted string) {
	if sorted == "name" {
		sorted = sortKeys[0]
	}
	head := []string{"SERVICE PORT", "CONNECTIONS/S", "PACKETS/S", "BYTES/S", "REFUSED/S", "LAST MINUTE"}
	table(p, head, services, func(s *serviceRate) []any {
		var refused []string
		for _, n := range s.Refused {
			refused = append(refused, rateText(n.Packets)+" "+n.Reason)
		}
		row := []any{orDash(s.name), rateText(s.Connections), "-", "-", orDash(strings.Join(refused, ", ")), sparkline(s.rounds, sorted)}
		if r.From == "counters" {
			row[2], row[3] = rateText(s.Packets), byteText(uint64(s.Bytes))
		}
		return row
	}, nil)
}

// rateText prints a number a second: with one digit after the point if it is small.
func rateText(n float64) string {
	if n > 0 && n < 10 {
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.0f", n)
}

// sparkWidth is the largest number of marks of a line.
const sparkWidth = 20

// sparkline draws one number of rounds. A mark is the largest of some rounds; a full mark is the largest of all.
func sparkline(rounds []traffic, number string) string {
	marks := []rune("▁▂▃▄▅▆▇█")
	largest := func(rounds []traffic) (n float64) {
		for _, t := range rounds {
			n = max(n, t.by(number))
		}
		return n
	}
	top, each := largest(rounds), (len(rounds)+sparkWidth-1)/sparkWidth
	var line []rune
	for end := len(rounds); end > 0; end -= each {
		mark := ' '
		if n := largest(rounds[max(0, end-each):end]); n > 0 {
			mark = marks[int(n/top*float64(len(marks)-1))]
		}
		line = append(line, mark)
	}
	slices.Reverse(line)
	return string(line)
}

// errNoEvents is the error of a kernel that makes no events of conntrack.
var errNoEvents = errors.New("net.netfilter.nf_conntrack_events is 0, so the kernel tells of no connections: set it to 2, or let the proxy count (feature gate NFTProxyServiceCounters)")
