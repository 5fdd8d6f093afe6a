package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
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
)

// refusal is a packet that the proxy's rules refused or dropped, or the notice that packets are missing.
type refusal struct {
	nodeDocument
	Time time.Time `json:"time"` // time at which the first notice about the packet was read
	// Lost: the kernel reported more than was read, so packets are missing; then all below is absent
	Lost bool `json:"lost,omitempty"`
	// Limited: --limit packets came in a second, so there may have been more; then all below is absent
	Limited bool `json:"limited,omitempty"`
	// Result is "refused" or "dropped".
	Result string `json:"result,omitempty" jsonschema:"enum=refused,enum=dropped"`
	Reason Reason `json:"reason,omitempty"`
	Why    string `json:"why,omitempty"` // the reason in a sentence
	// Namespace: absent, like service, for an address that no Service holds
	Namespace string `json:"namespace,omitempty"`
	Service   string `json:"service,omitempty"`
	// Port: name of the Service port; absent if it has none, and for a port that the Service does not have
	Port   string         `json:"port,omitempty"`
	Client netip.AddrPort `json:"client,omitzero"` // address and port that the packet came from
	// Dialed: address and port that the packet was sent to; port 0 for a protocol without ports
	Dialed      netip.AddrPort `json:"dialed,omitzero"`
	ClientPlace ruledump.Place `json:"clientPlace,omitzero"` // pod and node of the client, if they are known
	Protocol    string         `json:"protocol,omitempty"`
	// name is the Service port, as the rules name it.
	name string
}

// refusals prints the packets that the proxy's tables refuse. It is a listener. Its marker's tables have a chain before
// each of the proxy's chains that refuse packets, with the same rules, which mark the packets instead. A packet that they
// mark is not printed for that: the kernel's report has to show that a rule of the proxy refused it.
type refusals struct {
	marker
	comparer
	filter  Filter
	clients netip.Prefix
	// limit bounds the packets that each rule marks, per second.
	limit int
	// selected are the keys of the frontends, and the ClusterIPs, that the filter selects; nil for all.
	selected map[nft.Data]bool
	print    func(*refusal) error
	// check is the time of the next look for changed rules. earliest is the first time at which they may be read again.
	check, earliest time.Time
	// counts has the number of packets since second, by reason.
	second time.Time
	counts map[Reason]int
}

// refusedOptions are the flags of watch --refused.
type refusedOptions struct {
	from  string
	limit int
	time  time.Duration
	yes   bool
}

// watchRefused prints packets that the proxy's rules refuse.
func watchRefused(cmd *cobra.Command, where *source, filter Filter, o refusedOptions, tell func(*refusal) error) error {
	if o.limit < 1 || o.limit > math.MaxInt32 {
		return fmt.Errorf("--limit %d is not between 1 and %d", o.limit, math.MaxInt32)
	}
	clients, err := parseClients(o.from)
	if err != nil {
		return err
	}
	defer where.close()
	rules, err := where.open(cmd)
	if err != nil {
		return err
	}
	if rules.KubeProxys() {
		return errors.New("the tables are those of Kubernetes' kube-proxy: watch --refused knows nftproxy's rules alone")
	}
	r := &refusals{filter: filter, clients: clients, limit: o.limit, print: tell, counts: map[Reason]int{}}
	r.marker, r.comparer = marker{table: fmt.Sprintf("ruledump-refused-%d", os.Getpid())}, comparer{conn: where.conn}
	defer r.marker.close()
	tables, err := r.renew(rules)
	if err != nil {
		return err
	}
	if r.selected != nil && len(r.selected) == 0 {
		return filter.notFound()
	}
	follows := follower{table: r.table, to: r}
	return follows.run(cmd.Context(), where.conn, o.time, func() error {
		if err := r.markWith(cmd.Context(), tables); err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "ruledump: marks packets that will be refused in table %s, until it ends\n", r.table)
		return nil
	})
}

// markWith marks packets with these tables. A commit of its own does not make it read the rules again.
func (r *refusals) markWith(ctx context.Context, tables []*nft.Table) error {
	committed, err := r.mark(ctx, r.conn, tables)
	if committed {
		r.rules.Generation++
	}
	return err
}

func (r *refusals) document() nodeDocument { return aboutNode("Refusal", r.rules) }

// renew takes the rules, and returns tables that mark the packets which they refuse.
func (r *refusals) renew(rules *ruledump.Snapshot) (tables []*nft.Table, err error) {
	if err := r.use(rules); err != nil {
		return nil, err
	}
	r.selected = nil
	if !r.filter.isAll() {
		r.selected = map[nft.Data]bool{}
		for _, f := range r.frontends {
			if !r.filter.selects(f, rules.Addresses) {
				continue
			}
			if r.selected[f.Key()] = true; f.Kind == compiler.FrontendClusterIP {
				r.selected[nft.AddrData(f.Addr)] = true
			}
		}
		if len(r.selected) == 0 && r.filter.prefix.IsValid() {
			r.selected = nil // an address that no Service holds
		}
	}
	for _, t := range rules.Tables {
		if !r.clients.IsValid() || r.clients.Addr().Is4() == (t.Family == nft.FamilyIP) {
			tables = append(tables, r.marksBefore(t))
		}
	}
	return tables, nil
}

// marksBefore returns the marker's table for one of the proxy's tables: for each base chain that leads to a refusal a
// chain of the same hook, one priority before. The proxy's rules do not refuse a packet whose destination they have
// translated, so the copy leaves such a packet alone. The proxy's tables stay as they are.
func (r *refusals) marksBefore(own *nft.Table) *nft.Table {
	table := &nft.Table{Family: own.Family, Name: r.table, Owner: true}
	for _, base := range own.Chains {
		if rules := r.rulesBefore(own, base, table, nil); len(rules) > 0 {
			translated := nft.NewRule(nft.Match{Field: nft.CTStatus, Value: nft.CTStatusDNAT}, nft.Accept)
			table.Chains = append(table.Chains, &nft.Chain{Name: base.Name, Type: nft.TypeFilter, Hook: base.Hook, Priority: base.Priority - 1, Rules: append([]nft.Rule{translated}, rules...)})
		}
	}
	return table
}

// rulesBefore returns rules that mark what a chain refuses, or a chain to which it leads. It copies their sets. Under are
// the conditions of the rules that lead to a chain that isDirect, from its base chain on.
func (r *refusals) rulesBefore(own *nft.Table, chain *nft.Chain, to *nft.Table, under []nft.Statement) (rules []nft.Rule) {
	for i := range chain.Rules {
		rule := &chain.Rules[i]
		if isDirect(chain.Name) && drops(rule) && !forwards(rule) {
			rules = append(rules, r.marking(own, slices.Concat(under, rule.Statements), to)...)
		}
		for _, s := range rule.Statements {
			v, _ := s.(nft.Verdict)
			next := own.Chain(v.Chain)
			leadsThere := func(earlier nft.Rule) bool {
				return has(&earlier, func(e nft.Verdict) bool { return e.Chain == v.Chain })
			}
			if next == nil || !isDirect(next.Name) && slices.ContainsFunc(chain.Rules[:i], leadsThere) { // one rule for each ServiceCIDR
				continue
			}
			switch compiler.RoleOf(next.Name) {
			case compiler.RoleFirewall, compiler.RoleNoEndpoints, compiler.RoleClusterIPs:
				for i := range next.Rules {
					isNew := nft.Statement(nft.Match{Field: nft.CTState, Value: nft.CTStateNew})
					rules = append(rules, r.marking(own, append([]nft.Statement{isNew}, next.Rules[i].Statements...), to)...)
				}
			default:
				conditions := under
				if isDirect(next.Name) {
					conditions = slices.Concat(under, rule.Statements)
				}
				rules = append(rules, r.rulesBefore(own, next, to, conditions)...)
			}
		}
	}
	return rules
}

// marking returns a rule that marks what rules with all of these statements refuse. It keeps the conditions, turns a lookup
// in a verdict map into a lookup in a set with the same keys, and replaces the verdict. If some Services are selected, a rule that looks nothing
// up, and so concerns no Service, gets none.
func (r *refusals) marking(own *nft.Table, refuse []nft.Statement, to *nft.Table) []nft.Rule {
	var statements []nft.Statement
	if r.clients.IsValid() {
		statements = append(statements, nft.Match{Field: own.Family.Saddr(), Value: r.clients})
	}
	if r.selected == nil && r.filter.prefix.IsValid() {
		if r.filter.prefix.Addr().Is4() != (own.Family == nft.FamilyIP) {
			return nil
		}
		statements = append(statements, nft.Match{Field: own.Family.Daddr(), Value: r.filter.prefix})
	}
	named := false
	for _, s := range refuse {
		set := ""
		switch s := s.(type) {
		case nft.Match:
			statements = append(statements, s)
		case nft.InSet:
			statements, set = append(statements, s), s.Set
		case nft.Vmap:
			statements, set = append(statements, nft.InSet{Key: s.Key, Set: s.Map}), s.Map
		}
		if set != "" {
			named = true
			r.copySet(own.Set(set), to)
		}
	}
	if r.selected != nil && !named {
		return nil
	}
	limit := nft.Limit{Rate: uint32(r.limit), Burst: uint32(r.limit)}
	// accept ends the chain: the address of a Service without endpoints is in a ServiceCIDR too, and one mark is enough.
	return []nft.Rule{nft.NewRule(append(statements, limit, nft.SetNftrace, nft.Accept)...)}
}

// copySet copies the elements of the selected frontends.
func (r *refusals) copySet(from *nft.Set, to *nft.Table) {
	if from == nil || to.Set(from.Name) != nil {
		return
	}
	set := &nft.Set{Name: from.Name, Key: from.Key, Interval: from.Interval}
	of := from.Key
	if from.Interval { // the sources that may dial a frontend
		of = of[:len(of)-1]
	}
	for _, e := range from.Elements() {
		if r.selected == nil || r.selected[e.Key[:of.Len()]] {
			set.Put(nft.Element{Key: e.Key, KeyEnd: e.KeyEnd})
		}
	}
	to.Sets = append(to.Sets, set)
}

// Reading the rules again takes no more than one part in followShare of the time.
const followShare = 10

// tick reads the rules again if they have changed, and marks what they refuse now.
func (r *refusals) tick(ctx context.Context) error {
	begun := time.Now()
	if begun.Before(r.check) {
		return nil
	}
	defer func() {
		pause := (followShare - 1) * time.Since(begun)
		r.earliest, r.check = time.Now().Add(pause), time.Now().Add(max(refreshEvery, pause))
	}()
	fresh, err := rereadKernel(ctx, r.conn, r.rules)
	if err != nil || fresh == r.rules || len(fresh.Tables) == 0 {
		return err // without tables, somebody is making them anew
	}
	tables, err := r.renew(fresh)
	if err != nil {
		return err
	}
	return r.markWith(ctx, tables)
}

func (r *refusals) lost() error {
	return r.print(&refusal{nodeDocument: r.document(), Time: time.Now().UTC(), Lost: true})
}

// packet prints a marked packet, if the proxy's rules have refused it.
func (r *refusals) packet(ctx context.Context, p *underway) error {
	out := r.describe(p)
	if out != nil && out.Reason == ReasonOther {
		// The rule that refused the packet is newer than the rules that were read.
		r.check = r.earliest
		if err := r.tick(ctx); err != nil {
			return err
		}
		out = r.describe(p)
	}
	if out == nil {
		return nil
	}
	if err := r.print(out); err != nil {
		return err
	}
	if time.Since(r.second) > time.Second {
		r.second = time.Now()
		clear(r.counts)
	}
	if r.counts[out.Reason]++; r.counts[out.Reason] == r.limit {
		return r.print(&refusal{nodeDocument: r.document(), Time: out.Time, Limited: true})
	}
	return nil
}

// describe returns nil for a packet that the proxy's rules have not refused.
func (r *refusals) describe(p *underway) *refusal {
	w := r.way(p)
	if w.result == evaluator.Delivered || w.stopped || forwards(w.path[len(w.path)-1].Rule) {
		return nil
	}
	e := &Explanation{nodeDocument: r.document(), packet: p.packet(), rules: r.rules}
	e.findFrontends(r.frontends)
	e.add(&evaluator.Outcome{Fate: evaluator.Fate{Result: w.result, Destination: p.latest.Destination, Path: w.path}})
	o := &e.Outcomes[0]
	out := &refusal{
		nodeDocument: e.nodeDocument, Time: p.begun.UTC(), Result: o.Result, Reason: o.Reason, Why: o.Why, Client: p.first.Source, Dialed: p.first.Destination,
		Protocol: strings.ToUpper(nft.ProtocolName(e.packet.Protocol)), name: e.ServicePort, ClientPlace: r.rules.Places[p.first.Source.Addr()],
	}
	if o.Reason == ReasonUnknownPort {
		out.name = e.holder
	}
	out.Namespace, out.Service, out.Port = splitServicePort(out.name)
	return out
}

// Text implements View.
func (f *refusal) Text(p *Page) {
	at := f.Time.Local().Format("15:04:05.000")
	switch {
	case f.Lost:
		p.printf("%s %s\n", at, p.bad("messages of the kernel were lost: packets are missing"))
	case f.Limited:
		p.printf("%s %s\n", at, p.bad("as many in a second as --limit lets through: there may be more"))
	default:
		p.printf("%s %s %s %s to %s/%s: %s\n", at, p.bad(f.Result), cmp.Or(f.name, "no Service"), placed(f.Client.String(), f.ClientPlace), f.Dialed, f.Protocol, f.Reason)
	}
}
