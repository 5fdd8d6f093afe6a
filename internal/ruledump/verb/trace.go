package verb

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func newTraceCommand() *cobra.Command {
	var where source
	var to []string
	var from string
	var atMost int
	var patience time.Duration
	var yes bool
	format := newFormat("text", "json")
	cmd := &cobra.Command{
		Use:   "trace --to {SERVICE | ADDRESS:PORT[/PROTOCOL]} [--from ADDRESS]",
		Short: "Follow real packets through the rules of all tables",
		Long: `trace prints the way of real packets as the kernel reports it: the rules that each matched,
in the proxy's tables and in others, the elements that they found, the verdict, and the
translated address. It says where explain expects something else.

Like watch --refused, it changes the kernel. It adds a table of its own, ruledump-trace-PID,
whose rules mark matching packets ("meta nftrace set 1"), each rule at most as many a second as
-n says. The table belongs to trace's socket, so the kernel removes it when trace ends, even by
kill -9. So trace needs Linux 5.12, CAP_NET_ADMIN, and a terminal or --yes.

It follows the packets of clients, not the answers. A packet that the rules translate keeps
its mark. Later packets of a connection do not see NAT chains.`,
		Example: `  # What happens to the next ten packets to a Service?
  ruledump trace --to shop/web

  # Does this client's packet arrive at all?
  ruledump trace --from 198.51.100.7 --to 192.0.2.10:80 -n 1 --for 2m

  # Which packets were dropped, and by which rule?
  ruledump trace --yes --to shop/web -o json | jq -c 'select(.outcome.result == "dropped") | .outcome.path[-1]'`,
		Args: cobra.NoArgs,
	}
	format.addTo(cmd)
	cmd.Flags().StringArrayVar(&to, "to", nil, "destination that clients dial: a Service, NAMESPACE/NAME[:PORT], with all its addresses, or ADDRESS:PORT/tcp (or udp, sctp; tcp if left out), or ADDRESS/icmp; may be repeated")
	cmd.Flags().StringVar(&from, "from", "", "source: ADDRESS, or a prefix such as 10.244.0.0/16; all if left out")
	cmd.Flags().IntVarP(&atMost, "number", "n", 10, "end after this many packets")
	cmd.Flags().DurationVar(&patience, "for", 30*time.Second, "end after this time")
	cmd.Flags().BoolVar(&yes, "yes", false, "add the table also where standard input is no terminal")
	addServiceProxyName(cmd.Flags(), &where.serviceProxyName)
	_ = cmd.MarkFlagRequired("to")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := needYes(yes, "trace"); err != nil {
			return err
		}
		// A packet is told also when the command is to end.
		ctx := cmd.Context()
		cmd.SetContext(context.WithoutCancel(ctx))
		where.proxyAddress = ruledump.ProxyAddress
		defer where.close()
		rules, err := where.open(cmd)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		t := &tracing{conn: where.conn, table: fmt.Sprintf("ruledump-trace-%d", os.Getpid()), atMost: atMost}
		t.tell = func(p *tracedPacket) error { return format.stream(out, p) }
		t.complete = t.report
		if err := t.use(rules); err != nil {
			return err
		}
		if err := t.match(to, from); err != nil {
			return err
		}
		err = t.run(ctx, patience, func() {
			fmt.Fprintf(cmd.ErrOrStderr(), "ruledump: marks packets in table %s, until it ends\n", t.table)
		})
		if err == nil && t.told == 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "ruledump: no packet from a client to %s came within %v\n", strings.Join(to, " or "), patience)
		}
		return err
	}
	return cmd
}

// needYes is an error if a command that adds a table has neither --yes nor a terminal.
func needYes(yes bool, command string) error {
	if !yes && !term.IsTerminal(int(os.Stdin.Fd())) {
		return fmt.Errorf("%s adds a table to the kernel while it runs: give --yes if you want that", command)
	}
	return nil
}

// tracedPacket is the way of one packet, or the news that some were lost.
type tracedPacket struct {
	document
	Time time.Time `json:"time"` // time at which the first notice about the packet was read
	// Lost: the kernel reported more than was read, so steps of packets are missing; then all else is absent
	Lost   bool   `json:"lost,omitempty"`
	Packet string `json:"packet,omitempty"` // the packet in one line, as it came
	// ServicePort: the Service port that the packet is for; absent if there is none
	ServicePort string   `json:"servicePort,omitempty"`
	Outcome     *Outcome `json:"outcome,omitempty"`
	// Agrees: explain expects the same rules and the same address; absent if explain does not know
	Agrees   *bool    `json:"explainAgrees,omitempty"`
	Expected []string `json:"explainSays,omitempty"` // what explain expects instead, or why it does not know
}

// tracing follows packets.
type tracing struct {
	conn *nft.Conn
	// owner has the tables that mark packets. It reads nothing: a Conn whose reading is disturbed by a commit of somebody
	// else opens another socket, and the tables go with the first one.
	owner     *nft.Conn
	rules     *ruledump.Snapshot
	frontends []*compiler.Frontend
	evaluator *evaluator.Evaluator
	// others are tables of other programs that packets came through, with their chains.
	others []*nft.Table
	// table is the name of the tables that mark packets.
	table string
	marks []*nft.Table
	tell  func(*tracedPacket) error
	// complete gets each packet of which no more steps come. refresh, if set, is called now and then.
	complete func(context.Context, *underway) error
	refresh  func(context.Context) error
	// open are packets on their way, oldest first.
	open         []*underway
	told, atMost int
	// ending says that no more packets are wanted.
	ending bool
	// lost is set when messages were lost, until all packets that were open then are told.
	lost bool
}

// use takes the rules to explain with.
func (t *tracing) use(rules *ruledump.Snapshot) (err error) {
	t.rules, t.evaluator = rules, evaluator.New(rules.Tables, evaluator.Host{Addresses: rules.Addresses})
	t.frontends, err = rules.Frontends()
	return err
}

// Text implements View.
func (c *tracedPacket) Text(p *Page) {
	at := c.Time.Local().Format("15:04:05.000")
	if c.Lost {
		p.printf("%s %s\n\n", at, p.bad("messages of the kernel were lost: steps of packets are missing"))
		return
	}
	o := c.Outcome
	p.printf("%s %s\n%s\n  why: %s\n", at, c.Packet, p.headOf(o), o.Why)
	for line := range strings.Lines(o.steps.String()) {
		p.printf("  %s", line)
	}
	switch {
	case c.Agrees == nil:
		p.printf("  explain does not know: %s\n", strings.Join(c.Expected, "; "))
	case !*c.Agrees:
		p.printf("  %s\n", p.bad("explain says: "+strings.Join(c.Expected, "; or: ")))
	}
	p.WriteByte('\n')
}
