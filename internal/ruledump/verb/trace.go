package verb

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
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
	Time time.Time `json:"time"`
	// Lost says that the kernel reported more than was read, so steps of packets are missing. Then all else is empty.
	Lost        bool     `json:"lost,omitempty"`
	Packet      string   `json:"packet,omitempty"`
	ServicePort string   `json:"servicePort,omitempty"`
	Outcome     *Outcome `json:"outcome,omitempty"`
	// Agrees says that explain expects the same; nil if explain does not know, as Expected says.
	Agrees *bool `json:"explainAgrees,omitempty"`
	// Expected is what explain says instead.
	Expected []string `json:"explainSays,omitempty"`
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

// underway is a packet of which more steps may come.
type underway struct {
	id    uint32
	begun time.Time
	// ticks counts the ticks since the last step.
	ticks int
	// first and latest are the first steps in the first and in the last base chain, with the packet's headers.
	first, latest nft.Trace
	// returned says that the packet left by lo and came back in.
	returned bool
	// prerouted, routed and complete say that the packet has come to the end of prerouting, to forward or input, and to the
	// end of its way.
	prerouted, routed, complete bool
	steps                       []nft.Trace
}

// Limits of a trace.
const (
	// A packet is told when no more steps came for so many ticks: at the end of its way, and before.
	quietTicks, patientTicks = 4, 40
	tick                     = 50 * time.Millisecond
	// maxTraceSteps bounds the memory for one packet.
	maxTraceSteps = 1000
)

// use takes the rules to explain with.
func (t *tracing) use(rules *ruledump.Snapshot) (err error) {
	t.rules, t.evaluator = rules, evaluator.New(rules.Tables, evaluator.Host{Addresses: rules.Addresses})
	t.frontends, err = rules.Frontends()
	return err
}

// match makes the tables that mark the packets.
func (t *tracing) match(to []string, from string) error {
	var targets []target
	for _, text := range to {
		more, err := targetsOf(t.rules, text)
		if err != nil {
			return fmt.Errorf("--to: %w", err)
		}
		targets = append(targets, more...)
	}
	source, err := parseClients(from)
	if err != nil {
		return err
	}
	for _, family := range nft.Families {
		if source.IsValid() && source.Addr().Is4() != (family == nft.FamilyIP) {
			continue
		}
		set := &nft.Set{Name: "to", Key: nft.Concat{family.Daddr(), nft.MetaL4proto, nft.ThDport}}
		var rules []nft.Rule
		marks := func(statements ...nft.Statement) {
			if source.IsValid() {
				statements = append(statements, nft.Match{Field: family.Saddr(), Value: source})
			}
			rules = append(rules, nft.NewRule(append(statements, nft.Limit{Rate: uint32(t.atMost), Burst: uint32(t.atMost)}, nft.SetNftrace{})...))
		}
		for _, p := range targets {
			addr, port := p.Destination.Addr(), p.Destination.Port()
			if addr.Is4() != (family == nft.FamilyIP) {
				continue
			}
			if port == 0 {
				marks(nft.Match{Field: family.Daddr(), Value: netip.PrefixFrom(addr, addr.BitLen())}, nft.Match{Field: nft.MetaL4proto, Value: p.Protocol})
				continue
			}
			key, err := set.Key.Pack(addr, p.Protocol, port)
			if err != nil {
				return err
			}
			set.Put(nft.Element{Key: key})
		}
		if set.Len() > 0 {
			marks(nft.InSet{Key: set.Key, Set: set.Name})
		}
		if len(rules) == 0 {
			continue
		}
		table := &nft.Table{Family: family, Name: t.table, Owner: true, Sets: []*nft.Set{set}}
		for _, hook := range []nft.Hook{nft.HookPrerouting, nft.HookOutput} {
			table.Chains = append(table.Chains, &nft.Chain{Name: string(hook), Type: nft.TypeFilter, Hook: hook, Priority: -400, Rules: rules})
		}
		// These mark nothing: the kernel reports their policies.
		for _, c := range wayPoints {
			table.Chains = append(table.Chains, &c)
		}
		t.marks = append(t.marks, table)
	}
	if len(t.marks) == 0 {
		return fmt.Errorf("--from %s and --to %s are of different IP families", from, strings.Join(to, " and "))
	}
	return nil
}

// Chains that tell how far a packet has come: to the end of prerouting, to the beginning of forward or input, and to the
// end of its way.
const (
	chainPrerouted = "prerouted"
	chainForward   = "forward"
	chainInput     = "input"
	chainSent      = "sent"
	chainReceived  = "received"
)

var wayPoints = []nft.Chain{
	{Name: chainPrerouted, Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: math.MaxInt32},
	{Name: chainForward, Type: nft.TypeFilter, Hook: nft.HookForward, Priority: -400},
	{Name: chainInput, Type: nft.TypeFilter, Hook: nft.HookInput, Priority: -400},
	{Name: chainSent, Type: nft.TypeFilter, Hook: nft.HookPostrouting, Priority: math.MaxInt32},
	{Name: chainReceived, Type: nft.TypeFilter, Hook: nft.HookInput, Priority: math.MaxInt32},
}

// parseClients reads the value of --from: an address or a prefix; empty for all clients.
func parseClients(from string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(from); err == nil {
		return netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()), nil
	}
	clients, err := netip.ParsePrefix(from)
	if err != nil && from != "" {
		return clients, fmt.Errorf("--from: %q is neither an IP address nor a prefix", from)
	}
	return clients.Masked(), nil
}

// run follows packets until ctx ends, until enough have come, or for the time of patience if it is not 0. It calls ready
// when packets are marked.
func (t *tracing) run(ctx context.Context, patience time.Duration, ready func()) error {
	tracer, err := t.conn.Trace()
	if err != nil {
		return err
	}
	defer tracer.Close()
	if t.owner, err = t.conn.Another(); err != nil {
		return err
	}
	defer t.owner.Close()
	var tx nft.Transaction
	for _, marks := range t.marks {
		tx.Append(nft.Diff(nil, marks))
	}
	if _, err := t.owner.Commit(ctx, tx); err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("a table that goes with its owner needs Linux 5.12: %w", err)
		}
		return err
	}
	t.rules.Generation++
	ready()
	if patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	steps, failed := make(chan nft.Trace, 1024), make(chan error, 1)
	done, end := ctx.Done(), (<-chan time.Time)(nil)
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		for {
			step, err := tracer.Next(ctx)
			if err != nil {
				failed <- err
				return
			}
			select {
			case steps <- step:
			case <-ctx.Done():
				return
			}
		}
	}()
	quiet := time.NewTicker(tick)
	defer quiet.Stop()
	for t.told < t.atMost {
		select {
		case step := <-steps:
			err = t.take(ctx, step)
		case <-quiet.C:
			if len(steps) > 0 {
				continue // the steps of a packet that seems quiet may be among those that wait
			}
			err = t.finish(ctx, func(p *underway) bool { p.ticks++; return p.isQuiet() })
			if err == nil && t.refresh != nil {
				err = t.refresh(ctx)
			}
		case err = <-failed:
		case <-done: // the rest of the packets that are on their way
			done, end, t.ending = nil, time.After(quietTicks*tick), true
		case <-end:
			return t.finish(ctx, func(*underway) bool { return true })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// take takes a step of any packet that somebody traces.
func (t *tracing) take(ctx context.Context, step nft.Trace) error {
	if step.Lost {
		t.lost = true
		return t.tell(&tracedPacket{document: documentOf("Trace"), Time: time.Now().UTC(), Lost: true})
	}
	if step.Table == t.table {
		return t.takeMark(ctx, step)
	}
	at := slices.IndexFunc(t.open, func(p *underway) bool { return p.id == step.ID })
	if at < 0 {
		return nil // another's
	}
	p := t.open[at]
	p.ticks = 0
	if step.Destination.IsValid() {
		p.latest = step
	}
	if (step.Handle != 0 || step.Verdict.Kind != 0) && len(p.steps) < maxTraceSteps {
		p.steps = append(p.steps, step)
	}
	if step.Verdict == nft.Drop {
		return t.finish(ctx, func(open *underway) bool { return open == p })
	}
	return nil
}

// isQuiet reports whether no more steps come. On a busy machine the kernel may pause on a packet's way.
func (p *underway) isQuiet() bool {
	return p.ticks > patientTicks || p.complete && p.ticks > quietTicks
}

// takeMark takes a step in the table that marks packets.
func (t *tracing) takeMark(ctx context.Context, step nft.Trace) error {
	at := slices.IndexFunc(t.open, func(p *underway) bool { return p.id == step.ID })
	known := t.returning(step)
	switch {
	case known != nil:
		known.returned, known.prerouted, known.complete = true, false, false
	case step.Handle != 0: // a packet begins
	case begins(step):
		if known = t.routing(step); known != nil {
			known.routed, known.latest = true, step
		}
	case at >= 0:
		p := t.open[at]
		p.ticks = 0
		p.prerouted = p.prerouted || step.Chain == chainPrerouted
		p.complete = p.complete || step.Chain == chainSent || step.Chain == chainReceived
		return nil
	default: // the end of a chain that has marked a packet
		return nil
	}
	// The packet before may have had the same memory, and so the same number.
	if err := t.finish(ctx, func(p *underway) bool { return p != known && p.id == step.ID }); err != nil {
		return err
	}
	switch {
	case known != nil:
		known.id, known.ticks = step.ID, 0
	case step.Handle != 0 && !t.ending:
		t.open = append(t.open, &underway{id: step.ID, begun: time.Now(), first: step, latest: step})
	}
	return nil
}

// begins reports whether a step is the first one at forward or input.
func begins(step nft.Trace) bool {
	return (step.Chain == chainForward || step.Chain == chainInput) && step.Destination.IsValid()
}

// routing returns the packet that comes to forward or input with the step; nil for none. If br_netfilter called
// prerouting while the packet was at the port of a bridge, it has another number from here on. Then it is the newest one
// of its flow that comes from there: older ones the kernel has dropped.
func (t *tracing) routing(step nft.Trace) *underway {
	waits := func(p *underway) bool { return p.prerouted && !p.routed }
	if i := slices.IndexFunc(t.open, func(p *underway) bool { return waits(p) && p.id == step.ID }); i >= 0 {
		return t.open[i]
	}
	for _, p := range slices.Backward(t.open) {
		if waits(p) && p.first.In == step.In && p.first.Source == step.Source && p.first.Protocol == step.Protocol {
			return p
		}
	}
	return nil
}

// returning returns the packet that left by lo and comes back in with the step, the first of its flow; nil for none.
func (t *tracing) returning(step nft.Trace) (back *underway) {
	const lo = 1
	if step.Chain != string(nft.HookPrerouting) || step.In != lo {
		return nil
	}
	for _, p := range t.open {
		same := p.first.In == 0 && !p.returned && p.latest.Destination == step.Destination && p.first.Protocol == step.Protocol
		if same && (back == nil || back.first.Source != step.Source && p.first.Source == step.Source) {
			back = p
		}
	}
	return back
}

// finish tells of the packets that are complete.
func (t *tracing) finish(ctx context.Context, complete func(*underway) bool) error {
	for i := 0; i < len(t.open) && t.told < t.atMost; {
		p := t.open[i]
		if !complete(p) {
			i++
			continue
		}
		t.open = slices.Delete(t.open, i, i+1)
		if err := t.complete(ctx, p); err != nil {
			return err
		}
	}
	t.lost = t.lost && len(t.open) > 0
	return nil
}

// report compares a packet with explain, and tells of it. If they disagree and somebody has committed since the rules
// were read, it reads them again.
func (t *tracing) report(ctx context.Context, p *underway) error {
	out, err := t.compare(p)
	if err == nil && out.Agrees != nil && !*out.Agrees {
		var fresh *ruledump.Snapshot
		if fresh, err = rereadKernel(ctx, t.conn, t.rules); err == nil && fresh != t.rules {
			if err = t.use(fresh); err == nil {
				out, err = t.compare(p)
			}
		}
	}
	if err != nil {
		return err
	}
	t.told++
	return t.tell(out)
}

// packet returns the packet as it came.
func (p *underway) packet() evaluator.Packet {
	packet := evaluator.Packet{Source: p.first.Source, Destination: p.first.Destination, Protocol: p.first.Protocol, Local: p.first.In == 0}
	if iface, err := net.InterfaceByIndex(int(p.first.In)); err == nil {
		packet.Interface = iface.Name
	}
	return packet
}

// compare finds out which of the fates that explain expects is the packet's.
func (t *tracing) compare(p *underway) (*tracedPacket, error) {
	packet := p.packet()
	out := &tracedPacket{document: documentOf("Trace"), Time: p.begun.UTC(), Packet: packet.String()}
	w := t.way(p)
	e := &Explanation{nodeDocument: aboutNode("Trace", t.rules), packet: packet, rules: t.rules}
	e.findFrontends(t.frontends)
	var expected evaluator.Fates
	for i, candidate := range t.candidates(e, p) {
		fates, err := candidate()
		if err != nil {
			out.Expected = []string{err.Error()}
			break
		}
		if expected == nil {
			expected = fates
		}
		for _, fate := range fates {
			if w.is(&fate, p) {
				fate.Path = w.merge(fate.Path)
				if w.stopped {
					fate.Result = evaluator.Dropped
				}
				e.add(&evaluator.Outcome{Fate: fate, Destinations: []netip.AddrPort{fate.Destination}})
				agrees := true
				out.Outcome, out.ServicePort, out.Agrees = &e.Outcomes[0], e.ServicePort, &agrees
				if i == established || i == masqueraded {
					o := out.Outcome
					o.Reason, o.Source, o.SourceReason = ReasonEstablished, "", ""
					o.Why = "conntrack: the connection is established, so NAT chains do not see the packet"
				}
				w.blame(out.Outcome)
				return out, nil
			}
		}
	}
	// Without an expected fate, the trace alone has the result.
	fate := evaluator.Fate{Result: w.result, Destination: p.latest.Destination, Path: w.path}
	e.add(&evaluator.Outcome{Fate: fate, Destinations: []netip.AddrPort{fate.Destination}})
	o := &e.Outcomes[0]
	out.Outcome, out.ServicePort = o, e.ServicePort
	if o.Reason = ReasonOther; w.result == evaluator.Delivered {
		o.Source, o.Why = "", "explain expects another way"
	}
	if w.unfinished() {
		o.Reason, o.Result, o.head = ReasonKernel, "dropped", "dropped before the next hook"
		o.Why = "no rule dropped it: the kernel did (no route, rp_filter, conntrack), unless a program holds it in a queue"
	}
	switch {
	case t.lost:
		out.Expected = []string{"steps were lost"}
	case out.Expected == nil:
		agrees := false
		out.Agrees = &agrees
		for _, o := range expected.Outcomes() {
			out.Expected = append(out.Expected, head(&o))
		}
	}
	w.blame(o)
	return out, nil
}

// unfinished reports whether the last step is at a hook from which a packet goes on to another.
func (w *way) unfinished() bool {
	var last nft.Hook
	for _, s := range w.path {
		if s.Table.Family.Routes() {
			last = s.Hook
		}
	}
	if last == "" {
		return true
	}
	return w.result == evaluator.Delivered && (last == nft.HookPrerouting || last == nft.HookOutput)
}

// The reasons that only real packets have.
const (
	ReasonEstablished Reason = "established" // a later packet of a connection, which conntrack translates as the first
	ReasonKernel      Reason = "kernel"      // no rule decided: the packet did not come to the next hook
)

// The candidates of a connection that conntrack knows.
const (
	established = 1
	masqueraded = 2
)

// candidates are the fates that explain expects of the packet: with and without the clients that the kernel
// has in maps of session affinity now, because the packet may have been the one that added its client; and of
// a connection that conntrack knows already.
func (t *tracing) candidates(e *Explanation, p *underway) []func() (evaluator.Fates, error) {
	walk := func(c *evaluator.Connection) (evaluator.Fates, error) {
		packet := e.packet
		packet.Connection = c
		return t.evaluator.Fates(packet)
	}
	return []func() (evaluator.Fates, error){
		func() (evaluator.Fates, error) { t.forgetClients(e); return walk(nil) },
		func() (evaluator.Fates, error) {
			return walk(&evaluator.Connection{Destination: p.latest.Destination})
		},
		func() (evaluator.Fates, error) {
			return walk(&evaluator.Connection{Destination: p.latest.Destination, Masqueraded: true})
		},
		func() (evaluator.Fates, error) {
			for _, f := range e.frontends() {
				if err := e.readAffinity(t.rules, f); err != nil {
					return nil, err
				}
			}
			return walk(nil)
		},
	}
}

// forgetClients empties the maps of session affinity of the packet's frontends.
func (t *tracing) forgetClients(e *Explanation) {
	for _, f := range e.frontends() {
		for _, name := range f.AffinityMaps {
			if set := t.rules.Table(f.Family).Set(name); set != nil {
				for _, client := range set.Elements() {
					set.Remove(client.Key)
				}
			}
		}
	}
}

// way is a packet's path by its trace.
type way struct {
	path   evaluator.Path
	result evaluator.Result
	// own are the tables that explain walks.
	own []*nft.Table
	// stopped says that a rule of another program dropped the packet.
	stopped bool
}

// way finds chains and rules of a packet's steps.
func (t *tracing) way(p *underway) *way {
	w := &way{result: evaluator.Delivered, own: t.rules.Tables}
	levels := map[string]int{}
	var hook nft.Hook
	for i, step := range p.steps {
		s := evaluator.Step{Chain: &nft.Chain{Name: step.Chain}, Verdict: "continue"}
		if t.find(&s, step); s.Chain.Hook != "" {
			if hook = s.Chain.Hook; !s.Table.Family.Routes() {
				hook = nft.Hook(s.Table.Family.String() + " " + string(hook))
			}
		}
		if i == 0 || step.Destination.IsValid() {
			clear(levels)
		}
		if s.Hook, s.Level = hook, levels[step.Chain]; step.Verdict.Chain != "" {
			levels[step.Verdict.Chain] = s.Level + 1
		}
		switch {
		case step.Handle == 0:
			s.Verdict = "policy " + step.Verdict.String()
		case step.Verdict.Kind != 0:
			s.Verdict = step.Verdict.String()
		}
		if s.Rule == nil && step.Handle != 0 {
			s.Verdict = fmt.Sprintf("rule with handle %d: %s", step.Handle, s.Verdict)
		}
		if step.Verdict == nft.Drop {
			w.result, w.stopped = evaluator.Dropped, !slices.Contains(w.own, s.Table)
			if s.Rule != nil && has(s.Rule, func(nft.Reject) bool { return true }) {
				w.result = evaluator.Refused
			}
		}
		w.path = append(w.path, s)
	}
	return w
}

// find puts the table, the chain and the rule of the step in place. It reads the tables of other programs when a packet
// first comes through one that it does not know.
func (t *tracing) find(s *evaluator.Step, step nft.Trace) {
	same := func(table *nft.Table) bool { return table.Family == step.Family && table.Name == step.Table }
	if i := slices.IndexFunc(t.rules.Tables, same); i >= 0 {
		s.Table = t.rules.Tables[i]
	} else if i := slices.IndexFunc(t.others, same); i >= 0 {
		s.Table = t.others[i]
	} else {
		// An error leaves the table without chains: its rules are named by their handles then.
		t.others, _ = t.conn.ReadOthers(context.Background(), t.rules.Tables...)
		if i := slices.IndexFunc(t.others, same); i >= 0 {
			s.Table = t.others[i]
		} else {
			s.Table = &nft.Table{Family: step.Family, Name: step.Table, Kernel: &nft.KernelTable{}}
			t.others = append(t.others, s.Table)
		}
	}
	if chain := s.Table.Chain(step.Chain); chain != nil {
		s.Chain = chain
		if at := slices.Index(s.Table.Kernel.Handles[chain.Name], step.Handle); at >= 0 {
			s.Rule = &chain.Rules[at]
		}
	}
}

// is reports whether a fate is that of the traced packet: the same rules of the proxy's tables, and the same address.
func (w *way) is(fate *evaluator.Fate, p *underway) bool {
	var rest []evaluator.Step
	for _, s := range fate.Path {
		if w.reported(&s) {
			rest = append(rest, s)
		}
	}
	for _, s := range w.path {
		if !slices.Contains(w.own, s.Table) {
			continue
		}
		if len(rest) == 0 || rest[0].Chain != s.Chain || rest[0].Rule != s.Rule {
			return false
		}
		rest = rest[1:]
	}
	if w.stopped {
		return fate.Destination == p.latest.Destination || p.latest.Destination == p.first.Destination
	}
	return len(rest) == 0 && fate.Result == w.result && fate.Destination == p.latest.Destination
}

// reported reports whether the kernel reports a step of the evaluator's: a rule of the
// proxy's tables that matched, or a policy.
func (w *way) reported(s *evaluator.Step) bool {
	if s.Rule == nil {
		return s.Chain != nil && s.Chain.Hook != "" && slices.Contains(w.own, s.Table)
	}
	return !strings.HasPrefix(s.Verdict, "no match") && slices.Contains(w.own, s.Table)
}

// merge puts the steps in tables of others into the path of the fate, which has the elements.
func (w *way) merge(fate evaluator.Path) (out evaluator.Path) {
	// What explain says of other programs' tables, the trace knows better.
	fate = slices.DeleteFunc(slices.Clone(fate), func(s evaluator.Step) bool { return s.Table != nil && !slices.Contains(w.own, s.Table) })
	for _, s := range w.path {
		if !slices.Contains(w.own, s.Table) {
			for len(fate) > 0 && fate[0].Chain == nil && fate[0].Hook != s.Hook {
				out, fate = append(out, fate[0]), fate[1:]
			}
			out = append(out, s)
			continue
		}
		for done := false; !done; fate = fate[1:] {
			out, done = append(out, fate[0]), w.reported(&fate[0])
		}
	}
	if !w.stopped {
		out = append(out, fate...)
	}
	return out
}

// blame names the rule of another program that dropped the packet.
func (w *way) blame(o *Outcome) {
	if !w.stopped {
		return
	}
	last := w.path[len(w.path)-1]
	o.Reason, o.Why = ReasonOther, fmt.Sprintf("dropped by %s, chain %s (%s)", tableName(last.Table), last.Chain.Name, last.Verdict)
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
