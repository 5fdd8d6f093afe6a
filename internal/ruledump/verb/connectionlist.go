package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/spf13/cobra"
)

// connectionOptions are the flags of the connections command.
type connectionOptions struct {
	by       string
	limit    int
	unserved bool
	// unanswered selects flows of which no packet came back.
	unanswered bool
	watch      bool
	// listFailing lists flows beside the sums, if their endpoint does not serve, or if
	// they did not come about or were reset.
	listFailing bool
}

// failingStates are those of TCP connections that one side did not answer or has reset.
var failingStates = []string{"SYN_SENT", "SYN_RECV", "CLOSE"}

func newConnectionsCommand() *cobra.Command {
	var from source
	var o connectionOptions
	cmd := &cobra.Command{
		Use:   "connections [NAME]",
		Short: "List the connections to Services that conntrack has",
		Long: `connections prints the flows of the kernel's connection tracking whose clients dialed a
Service: client, dialed address, endpoint, state, and the time after which the kernel forgets
the flow. The kernel's rules say which Service an address belongs to. It needs CAP_NET_ADMIN.

SERVES is "no" where the rules no longer have the endpoint for the Service, or where the flow
was never translated. Changed rules do not move connections. Such flows come first.

--unanswered prints the flows that wait for an answer: TCP in SYN_SENT, and UDP of one
direction, which some protocols have on purpose. With --by endpoint it says which pods do not
answer.

BYTES and AGE are "-" unless the sysctls net.netfilter.nf_conntrack_acct and
nf_conntrack_timestamp were on when the flow began.

--by adds the flows up by endpoint, by client, by state, or by node: the gateway or device to
which the node sends packets for the endpoint. -w prints flows as they begin and end, until
Ctrl-C. --dump lists the flows of a report: those whose endpoint does not serve.`,
		Example: `  # Who talks to this Service?
  ruledump connections shop/web

  # Which connections lead to endpoints that no longer serve?
  ruledump connections --unserved

  # Which endpoints do not answer?
  ruledump connections --unanswered --by endpoint

  # Which clients have most connections?
  ruledump connections -n shop web --by client

  # Follow, as JSON, one a line.
  ruledump connections -w -o json shop/web | jq -r .source`,
		Args: cobra.MaximumNArgs(1),
	}
	from.addKernel(cmd)
	from.addNames(cmd)
	flags := cmd.Flags()
	flags.StringVar(&from.kubeconfig, "kubeconfig", "", "name pods and nodes after the EndpointSlices of a cluster, which are listed once")
	_ = cmd.MarkFlagFilename("kubeconfig")
	flags.StringVar(&o.by, "by", "", "add up by endpoint, client, node or state")
	flags.StringVar(&from.dump, "dump", "",
		`list the flows of a file that "ruledump report" wrote: those whose endpoint does not serve`)
	_ = cmd.MarkFlagFilename("dump", "tar.gz")
	flags.IntVar(&o.limit, "limit", defaultLimit, "how many lines to print; 0 for all")
	flags.BoolVar(&o.unserved, "unserved", false, "only flows whose endpoint does not serve the Service")
	flags.BoolVar(&o.unanswered, "unanswered", false, "only flows of which no packet has come back")
	flags.BoolVarP(&o.watch, "watch", "w", false, "print flows as they begin and end")
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(sumsBy, cobra.ShellCompDirectiveNoFileComp))
	format := newFormat("table", "wide", "name", "json")
	format.addTo(cmd)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		switch {
		case o.by != "" && !slices.Contains(sumsBy, o.by):
			return fmt.Errorf("unknown --by %q; want %s", o.by, strings.Join(sumsBy, ", "))
		case o.by != "" && o.watch:
			return errors.New("--by adds up what there is, and -w prints what comes: give one")
		case from.dump != "" && (o.watch || o.by == sumByNode):
			return errors.New("--dump has flows of another time, and perhaps of another node: it goes with neither -w nor --by node")
		case o.limit < 0:
			return fmt.Errorf("--limit %d is negative", o.limit)
		}
		return nil
	}
	return from.indexes(cmd, false, func(cmd *cobra.Command, index *flowIndex, _ Filter) error {
		if o.watch {
			return followConnections(cmd, index, format, o)
		}
		list, err := listConnections(cmd.Context(), index, o)
		if err != nil {
			return err
		}
		return format.show(cmd.OutOrStdout(), list)
	})
}

// addKernel adds the flags of a command that reads the running kernel alone.
func (s *source) addKernel(cmd *cobra.Command) {
	addServiceProxyName(cmd.Flags(), &s.serviceProxyName)
	s.addProxyAddress(cmd)
	s.addFilter(cmd)
}

// addProxyAddress adds the flag of a command that asks the proxy beside the kernel's rules.
func (s *source) addProxyAddress(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.proxyAddress, "proxy-address", ruledump.ProxyAddress,
		"metrics address of the proxy on this node, HOST:PORT: its /configz has the node's name and the settings; empty asks nobody")
	_ = cmd.RegisterFlagCompletionFunc("proxy-address", cobra.NoFileCompletions)
}

// sumsBy are the values of --by.
var sumsBy = []string{"endpoint", "client", sumByNode, sumByState}

const (
	sumByNode  = "node"
	sumByState = "state"
	// defaultLimit is the default of --limit.
	defaultLimit = 500
)

// Connections holds flows to Services of one node.
type Connections struct {
	nodeDocument
	Total    int `json:"total"`    // number of flows
	Finished int `json:"finished"` // number of flows that have ended
	Unserved int `json:"unserved"` // number of flows whose endpoint does not serve the address
	// Unanswered: number of flows of which no packet has come back
	Unanswered int `json:"unanswered"`
	// Flows are at most --limit, with noEndpoint first; absent with --by. A report has the flows with noEndpoint
	// alone, beside sums.
	Flows []*serviceFlow `json:"connections,omitempty"`
	// By: the value of --by
	By   string           `json:"by,omitempty" jsonschema:"enum=endpoint,enum=client,enum=node,enum=state"`
	Sums []*connectionSum `json:"sums,omitempty"` // the largest first
	// limit bounds the lines that are kept.
	limit int
}

// serviceFlow is a flow to a Service.
type serviceFlow struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Port      string `json:"port,omitempty"` // name of the Service port; absent if it has none
	Protocol  string `json:"protocol" jsonschema:"enum=TCP,enum=UDP,enum=SCTP"`
	connection
	// SourcePlace and ServerPlace: pod and node of the client and of the endpoint, if they are known
	SourcePlace ruledump.Place `json:"sourcePlace,omitzero"`
	ServerPlace ruledump.Place `json:"serverPlace,omitzero"`
	Answered    bool           `json:"answered"` // a packet came back
	// LeftSeconds: the kernel forgets the flow after this time, unless a packet comes
	LeftSeconds int `json:"leftSeconds"`
	// Begun: time of the first packet; absent unless nf_conntrack_timestamp was on
	Begun time.Time `json:"begun,omitzero"`
	// Packets: in both directions; absent unless nf_conntrack_acct was on
	Packets uint64 `json:"packets,omitempty"`
	Bytes   uint64 `json:"bytes,omitempty"` // in both directions; absent unless nf_conntrack_acct was on
	// Node: the gateway (via) or the device (dev) to which the node sends packets for the endpoint, or "no route"
	Node string `json:"node,omitempty"`
	// name is the Service port, as the rules name it.
	name string
}

// connectionSum adds up flows to a Service port that have an endpoint, client or node in common.
type connectionSum struct {
	sumKey
	Connections int    `json:"connections"`
	Finished    int    `json:"finished"`
	Unserved    int    `json:"unserved"`
	Unanswered  int    `json:"unanswered"`
	Packets     uint64 `json:"packets,omitempty"`
	Bytes       uint64 `json:"bytes,omitempty"`
}

type sumKey struct {
	ServicePort string `json:"servicePort"`
	Protocol    string `json:"protocol" jsonschema:"enum=TCP,enum=UDP,enum=SCTP,enum=-"`
	// Of: the endpoint, client or node; "others" for clients beyond the first 100,000
	Of string `json:"of"`
	// Place: pod and node of an endpoint or a client, if they are known
	Place ruledump.Place `json:"place,omitzero"`
}

// maxSums bounds the memory of --by client: a scan has any number of clients. All others share one sum.
const maxSums = 100_000

// othersName names the sum of those that have none of their own.
const othersName = "others"

// listConnections reads the flows of conntrack to the Services of the index. Of the flows
// it keeps those that it prints.
func listConnections(ctx context.Context, index *flowIndex, o connectionOptions) (*Connections, error) {
	hops := &nextHops{known: map[netip.Addr]string{}}
	index.hops = hops
	list := &Connections{nodeDocument: aboutNode("Connections", index.rules), By: o.by, limit: o.limit}
	var serving, others []*serviceFlow
	sums := map[sumKey]*connectionSum{}
	add := func(e conntrack.Entry) {
		f := index.find(&e)
		if f == nil || o.leavesOut(f) {
			return
		}
		list.Total++
		if f.isUnanswered() {
			list.Unanswered++
		}
		if f.Finished {
			list.Finished++
		}
		keep := &serving
		if f.NoEndpoint {
			list.Unserved++
			keep = &others
		}
		if o.by != "" {
			addSum(sums, f, o.by, hops)
		}
		if listed := o.by == "" || o.listFailing &&
			(f.NoEndpoint || slices.Contains(failingStates, f.State)); listed && (o.limit == 0 || len(*keep) < o.limit) {
			*keep = append(*keep, f)
		}
	}
	if err := index.entries(ctx, add); err != nil {
		return nil, err
	}
	for _, flows := range [][]*serviceFlow{others, serving} {
		slices.SortStableFunc(flows, (*serviceFlow).compare)
		list.Flows = append(list.Flows, flows...)
	}
	if o.limit > 0 {
		list.Flows = list.Flows[:min(o.limit, len(list.Flows))]
	}
	for _, f := range list.Flows {
		if f.Node == "" && index.from.dump == "" {
			f.Node = hops.to(f.Server.Addr())
		}
	}
	for _, sum := range sums {
		list.Sums = append(list.Sums, sum)
	}
	slices.SortFunc(list.Sums, func(a, b *connectionSum) int {
		return cmp.Or(cmp.Compare(b.Connections, a.Connections), cmp.Compare(a.ServicePort, b.ServicePort), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Of, b.Of))
	})
	return list, hops.err
}

func addSum(sums map[sumKey]*connectionSum, f *serviceFlow, by string, hops *nextHops) {
	key := sumKey{f.name, f.Protocol, f.Server.String(), f.ServerPlace}
	switch by {
	case "client":
		key.Of, key.Place = f.Source.Addr().String(), f.SourcePlace
	case sumByState:
		key.Of, key.Place = f.stateText(), ruledump.Place{}
	case sumByNode:
		key.Of, key.Place = hops.to(f.Server.Addr()), ruledump.Place{}
	}
	if sums[key] == nil && len(sums) >= maxSums {
		key = sumKey{"-", "-", othersName, ruledump.Place{}}
	}
	sum := sums[key]
	if sum == nil {
		sum = &connectionSum{sumKey: key}
		sums[key] = sum
	}
	sum.Connections++
	if f.Finished {
		sum.Finished++
	}
	if f.NoEndpoint {
		sum.Unserved++
	}
	if f.isUnanswered() {
		sum.Unanswered++
	}
	sum.Packets += f.Packets
	sum.Bytes += f.Bytes
}

// leavesOut reports whether the flags leave out a flow.
func (o *connectionOptions) leavesOut(f *serviceFlow) bool {
	return o.unserved && !f.NoEndpoint || o.unanswered && !f.isUnanswered()
}

func (f *serviceFlow) isUnanswered() bool { return !f.Answered && !f.Finished }

func (f *serviceFlow) compare(other *serviceFlow) int {
	return cmp.Or(cmp.Compare(f.name, other.name), cmp.Compare(f.Protocol, other.Protocol), f.Source.Compare(other.Source), f.Dialed.Compare(other.Dialed))
}

// stateText is the state of a connection; for a protocol without states it says whether there was an answer.
func (f *serviceFlow) stateText() string {
	switch {
	case f.State != "":
		return f.State
	case f.Answered:
		return "ANSWERED"
	}
	return "UNANSWERED"
}

// Text implements View.
func (l *Connections) Text(p *Page) {
	if p.Format == "name" {
		l.printNames(p)
		return
	}
	if l.By != "" {
		l.printSums(p)
		return
	}
	head := []string{"SERVICE PORT", "CLIENT", "DIALED", "ENDPOINT", "SERVES", "STATE", "LEFT", "AGE", "BYTES"}
	wide := p.Format == "wide"
	if wide {
		head = append(head, "PACKETS", "NODE")
	}
	table(p, head, l.Flows, func(f *serviceFlow) []any {
		age := ""
		if !f.Begun.IsZero() {
			age = shortDuration(time.Since(f.Begun).Round(time.Second))
		}
		row := []any{
			f.name, f.client(), f.Dialed.String() + "/" + f.Protocol, f.endpoint(), f.serves(), f.stateText(),
			orDash(shortDuration(time.Duration(f.LeftSeconds) * time.Second)), orDash(age), countText(f.Bytes, byteText),
		}
		if wide {
			row = append(row, countText(f.Packets, decimal), orDash(f.Node))
		}
		return row
	}, func(f *serviceFlow) bool { return f.NoEndpoint })
	p.more(l.Total-len(l.Flows), "… and %d more; --limit 0 prints all, --by adds them up\n")
}

// printNames prints the Services of the connections, or what they were added up by.
func (l *Connections) printNames(p *Page) {
	var names []string
	for _, f := range l.Flows {
		if f.Service == "" {
			continue
		}
		names = append(names, f.Namespace+"/"+f.Service)
	}
	for _, s := range l.Sums {
		names = append(names, s.Of)
	}
	p.names(names)
}

func (l *Connections) printSums(p *Page) {
	shown := l.Sums
	if l.limit > 0 {
		shown = shown[:min(l.limit, len(shown))]
	}
	head := []string{"SERVICE PORT", "PROTOCOL", strings.ToUpper(l.By), "CONNECTIONS", "FINISHED", "UNSERVED", "UNANSWERED", "BYTES"}
	table(p, head, shown, func(s *connectionSum) []any {
		return []any{s.ServicePort, s.Protocol, placed(s.Of, s.Place), s.Connections, s.Finished, s.Unserved, s.Unanswered, countText(s.Bytes, byteText)}
	}, func(s *connectionSum) bool { return s.Unserved > 0 })
	p.more(len(l.Sums)-len(shown), "… and %d more; --limit 0 prints all\n")
}

func (f *serviceFlow) client() string   { return placed(f.Source.String(), f.SourcePlace) }
func (f *serviceFlow) endpoint() string { return placed(f.Server.String(), f.ServerPlace) }

func (f *serviceFlow) serves() string {
	if f.NoEndpoint {
		return "no"
	}
	return "yes"
}

func decimal(n uint64) string { return fmt.Sprint(n) }

// countText prints what the kernel counted; it counts nothing where accounting is off.
func countText(n uint64, text func(uint64) string) string {
	if n == 0 {
		return "-"
	}
	return text(n)
}

// flowEvent is a flow that began or ended, or says that events were lost.
type flowEvent struct {
	document
	Time time.Time `json:"time"` // time at which the event arrived
	// Event: lost: events came faster than they were read; the flow is absent then
	Event string `json:"event" jsonschema:"enum=began,enum=ended,enum=lost"`
	*serviceFlow
}

// Text implements View.
func (e *flowEvent) Text(p *Page) {
	if p.Format == "name" && e.serviceFlow != nil {
		p.names([]string{e.Namespace + "/" + e.Service})
		return
	}
	p.printf("%s %s", e.Time.Format(time.RFC3339Nano), e.Event)
	if f := e.serviceFlow; f != nil {
		p.printf(" %s %s to %s/%s at %s", f.name, f.client(), f.Dialed, f.Protocol, f.endpoint())
		if f.NoEndpoint {
			p.WriteString(p.bad(", which does not serve"))
		}
	}
	p.WriteByte('\n')
}

// followConnections prints flows as they begin and end, until the command's context ends.
func followConnections(cmd *cobra.Command, index *flowIndex, format *outputFormat, o connectionOptions) error {
	conn, err := conntrack.Dial(0)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	err = conn.Follow(cmd.Context(), nil, func(e conntrack.Event) error {
		told := &flowEvent{document: documentOf("ConnectionEvent"), Time: time.Now().UTC(), Event: "began"}
		switch {
		case e.Lost:
			told.Event = "lost"
		case e.Ended:
			told.Event = "ended"
		}
		if !e.Lost {
			if err := index.refresh(cmd.Context()); err != nil {
				return err
			}
			if told.serviceFlow = index.find(&e.Entry); told.serviceFlow == nil || o.leavesOut(told.serviceFlow) {
				return nil
			}
		}
		return format.stream(out, told)
	})
	if cmd.Context().Err() != nil {
		return nil
	}
	return err
}
