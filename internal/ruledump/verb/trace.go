package verb

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func newTraceCommand() *cobra.Command {
	var where source
	var to []string
	var from, pcap string
	var atMost int
	var patience time.Duration
	var yes, onlyNew, onlyDropped bool
	format := newFormat("text", "json")
	cmd := &cobra.Command{
		Use:   "trace [--to {SERVICE | ADDRESS:PORT[/PROTOCOL]}] [--from ADDRESS]",
		Short: "Follow real packets through the rules of all tables",
		Long: `trace prints the way of real packets as the kernel reports it: the rules that each matched,
in the proxy's tables and in others, the elements that they found, the verdict, and the
translated address. It says where explain expects something else. If no rule drops a packet and
it goes no further, the kernel's routing says why. Packets of a connection that nobody has
answered are retransmissions: look behind the address that they go to.

Like watch --refused, it changes the kernel. It adds a table of its own, ruledump-trace-PID,
whose rules mark matching packets ("meta nftrace set 1"), each rule at most as many a second as
-n says. The table belongs to trace's socket, so the kernel removes it when trace ends, even by
kill -9. So trace needs Linux 5.12, CAP_NET_ADMIN, and a terminal or --yes.

It follows the packets of clients, not the answers. A packet that the rules translate keeps
its mark. Later packets of a connection do not see NAT chains.

--pcap writes the headers of the packets for Wireshark: as each came, and as it left if that
differs. The kernel reports the first 20 bytes behind the header of IP alone.`,
		Example: `  # What happens to the next ten packets to a Service?
  ruledump trace --to shop/web

  # Does this client's packet arrive at all?
  ruledump trace --from 198.51.100.7 --to 192.0.2.10:80 -n 1 --for 2m

  # Which packets were dropped, and by which rule?
  ruledump trace --yes --dropped -o json | jq -c '.outcome.path[-1]'`,
		Args: cobra.NoArgs,
	}
	format.addTo(cmd)
	cmd.Flags().StringArrayVar(&to, "to", nil, "destination that clients dial: a Service, NAMESPACE/NAME[:PORT], with all its addresses, or ADDRESS:PORT/tcp (or udp, sctp; tcp if left out), or ADDRESS/icmp; may be repeated; all if left out")
	cmd.Flags().StringVar(&from, "from", "", "source: ADDRESS, or a prefix such as 10.244.0.0/16; all if left out")
	cmd.Flags().IntVarP(&atMost, "number", "n", 10, "end after this many connections, and with --dropped packets")
	cmd.Flags().BoolVar(&onlyNew, "new", false, "trace only packets of connections that nobody has answered, from connection tracking on (priority -200)")
	cmd.Flags().BoolVar(&onlyDropped, "dropped", false, "print only packets that are dropped or refused")
	cmd.Flags().StringVar(&pcap, "pcap", "", "also write the packets' headers to this file, in the format of libpcap")
	cmd.Flags().DurationVar(&patience, "for", 30*time.Second, "end after this time")
	cmd.Flags().BoolVar(&yes, "yes", false, "add the table also where standard input is no terminal")
	addServiceProxyName(cmd.Flags(), &where.serviceProxyName)
	_ = cmd.MarkFlagFilename("pcap", "pcap")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := needYes(yes, "trace"); err != nil {
			return err
		}
		ctx := cmd.Context()
		cmd.SetContext(context.WithoutCancel(ctx)) // for packets that are on their way when the command ends
		where.proxyAddress = ruledump.ProxyAddress
		defer where.close()
		rules, err := where.open(cmd)
		if err != nil {
			return err
		}
		m := &marker{table: fmt.Sprintf("ruledump-trace-%d", os.Getpid()), onlyNew: onlyNew}
		tables, err := m.tablesFor(rules, to, from, uint32(atMost))
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		t := &tracing{comparer: comparer{conn: where.conn}, wanted: atMost, seen: map[flow]bool{}, onlyDropped: onlyDropped}
		t.tell = func(p *tracedPacket) error { return format.stream(out, p) }
		if pcap != "" {
			file, err := os.OpenFile(pcap, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			defer file.Close()
			if t.capture, err = newCapture(file); err != nil {
				return err
			}
		}
		if err := t.useWithHost(rules); err != nil {
			return err
		}
		follows := follower{table: m.table, to: t}
		err = follows.run(ctx, where.conn, patience, func() error {
			if _, err := m.mark(ctx, where.conn, tables); err != nil {
				return err
			}
			rules.Generation++
			fmt.Fprintf(cmd.ErrOrStderr(), "ruledump: marks packets in table %s, until it ends\n", m.table)
			return nil
		})
		m.close()
		if err == nil && len(t.seen) == 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "ruledump: no packet from a client to %s came within %v\n", cmp.Or(strings.Join(to, " or "), "anywhere"), patience)
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

// tracing prints packets, each compared with what explain expects. It is a listener.
type tracing struct {
	comparer
	tell func(*tracedPacket) error
	// wanted is the number of connections that are still wanted, and seen has those that came.
	wanted int
	seen   map[flow]bool
	// onlyDropped leaves out what is delivered, and counts packets.
	onlyDropped bool
	// capture gets the headers of the packets; nil for none.
	capture *capture
}

// flow identifies a connection by its first packet.
type flow struct {
	source, destination netip.AddrPort
	protocol            uint8
}

// useWithHost takes the rules to explain with, and reads routes and settings. What cannot be read is not known.
func (t *tracing) useWithHost(rules *ruledump.Snapshot) error {
	_ = rules.AddHost()
	return t.use(rules)
}

// packet prints a packet. If explain expects another way and somebody has committed since the rules were read, tracing
// reads the rules again before it says so.
func (t *tracing) packet(ctx context.Context, p *underway) error {
	out, err := t.compare(p)
	if err == nil && out.Agrees != nil && !*out.Agrees {
		var fresh *ruledump.Snapshot
		if fresh, err = rereadKernel(ctx, t.conn, t.rules); err == nil && fresh != t.rules {
			if err = t.useWithHost(fresh); err == nil {
				out, err = t.compare(p)
			}
		}
	}
	delivered := err == nil && out.Outcome.Result != "dropped" && out.Outcome.Result != "refused"
	if err != nil || t.onlyDropped && delivered {
		return err
	}
	if t.capture != nil {
		err = t.capture.add(p)
	}
	of := flow{p.first.Source, p.first.Destination, p.first.Protocol}
	if t.onlyDropped || !t.seen[of] {
		t.seen[of] = true
		t.wanted--
	}
	if err = cmp.Or(err, t.tell(out)); err == nil && t.wanted <= 0 {
		err = errEnough
	}
	return err
}

func (t *tracing) lost() error {
	return t.tell(&tracedPacket{document: documentOf("Trace"), Time: time.Now().UTC(), Lost: true})
}

func (t *tracing) tick(context.Context) error { return nil }

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
