package verb

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
)

func newDiffCommand() *cobra.Command {
	var from source
	var all bool
	format := newFormat("text", "json")
	cmd := &cobra.Command{
		Use:   "diff {--manifests DIR|FILE | --kubeconfig FILE | --node-local TARGET} --node NAME [--dump FILE]",
		Short: "Say how the kernel's rules differ from the desired state",
		Long: `diff compiles the desired rules, from manifests, a cluster or a node-local server, and
compares them with those of the kernel or of a dump: first in terms of Services, then in
elements, chains and rules. "-" marks what is missing, "+" what is not desired, "~" what
differs.

The exit status is 0 for no difference, 1 for a difference and 2 for an error. A kernel
without the proxy's tables is a difference: everything is missing. The proxy is a moment behind
the cluster, so only a difference that is still there some seconds later counts.

The desired rules depend on the proxy's settings. Without --config, diff asks the proxy that
runs beside the kernel's tables (--proxy-address), and fails if none answers. A dump is
compared with kube-proxy's default settings. The output names the settings, unless --config
does. Clients of Services with session affinity do not count.`,
		Example: `  # For cron: do the rules on this node match the cluster?
  ruledump diff --kubeconfig /etc/kubernetes/kubeconfig --node "$(hostname)"

  # The same while no proxy runs.
  ruledump diff --kubeconfig /etc/kubernetes/kubeconfig --node "$(hostname)" --config /var/lib/kube-proxy/config.conf

  # Do they match the state of the node-local server?
  ruledump diff --node-local unix:///run/nftproxy/node-local.sock --node "$(hostname)"

  # What was different when the dump was made?
  ruledump diff --manifests objects/ --node node-1 --dump node-1.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			defer from.close()
			d, err := diff(cmd, &from)
			if err != nil {
				return err
			}
			d.all, d.known = all, from.config != ""
			if err := format.show(cmd.OutOrStdout(), d); err != nil || d.Equal {
				return err
			}
			return errDifferent
		},
	}
	from.addWanted(cmd, ", the desired state")
	from.addActual(cmd)
	format.addTo(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "print everything that differs, not only the first 20 Services and the first 20 elements and rules")
	return cmd
}

func diff(cmd *cobra.Command, from *source) (*Difference, error) {
	actual, err := from.actual(cmd)
	if err != nil {
		return nil, err
	}
	if actual.KubeProxys() {
		return nil, errors.New("the tables were written by Kubernetes' kube-proxy, and diff compares nftproxy's; \"ruledump services\" lists both kinds")
	}
	if err := checkSettings(cmd, from); err != nil {
		return nil, err
	}
	wanted, err := from.compile(cmd)
	if err != nil {
		return nil, err
	}
	if err := actual.NeedTables(cmd.Context()); err != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "ruledump:", err)
	}
	d, err := Diff(wanted, actual)
	if err == nil {
		settings := from.compilation()
		d.Settings = settings.Settings()
	}
	return d, err
}

// checkSettings refuses to compare a kernel with rules for other settings than its proxy has, unless told to. It warns
// if the proxy is another node's.
func checkSettings(cmd *cobra.Command, from *source) error {
	switch {
	case from.proxy != nil && from.proxy.Node != from.node:
		fmt.Fprintf(cmd.ErrOrStderr(), "ruledump: the proxy at %s says that this is node %s, and --node is %s\n",
			from.proxy.Address, from.proxy.Node, from.node)
	case from.noProxy != nil && from.config == "":
		return fmt.Errorf("%w: give its metrics address (--proxy-address), its configuration file (--config), or --proxy-address= for kube-proxy's defaults", from.noProxy)
	}
	return nil
}

// Difference holds the differences between the wanted rules and a kernel's. Its lists are empty, but not nil, if there
// are none.
type Difference struct {
	document
	// Settings names the settings of the wanted rules, such as "settings of the proxy at 127.0.0.1:10249".
	Settings string `json:"settings,omitempty"`
	// Equal says that there are no differences. Clients in maps of session affinity do not count.
	Equal    bool                `json:"equal"`
	Services []differentFrontend `json:"services"` // the frontends that differ
	Rules    []differentRule     `json:"rules"`    // the elements, rules, chains, sets and tables that differ

	// all prints everything that differs; known leaves out the Settings.
	all, known bool
}

// How a part differs.
const (
	missing  = "missing" // wanted and not there
	unwanted = "unwanted"
	changed  = "changed"
)

// differentFrontend is a frontend that is missing, unwanted or changed.
type differentFrontend struct {
	Is          string `json:"is" jsonschema:"enum=missing,enum=unwanted,enum=changed"`
	ServicePort string `json:"servicePort"`
	Kind        string `json:"kind" jsonschema:"enum=ClusterIP,enum=External,enum=NodePort"`
	Family      string `json:"family" jsonschema:"enum=ip,enum=ip6"`
	Address     string `json:"address"` // as in Frontend
	Protocol    string `json:"protocol" jsonschema:"enum=TCP,enum=UDP,enum=SCTP"`
	// Changes: the properties that differ, if the frontend has changed
	Changes []changedProperty `json:"changes,omitempty"`
}

type changedProperty struct {
	Property string `json:"property"`
	Wanted   string `json:"wanted"`
	Actual   string `json:"actual"`
}

// differentRule is an element, rule, chain, set or table that is missing or unwanted.
type differentRule struct {
	Is string `json:"is" jsonschema:"enum=missing,enum=unwanted"`
	// Where is the table, and the set or chain in it, such as "ip kube-proxy service-ips".
	Where string `json:"where"`
	// What is the element or rule as nft prints it, or a word such as "chain" if all of it differs.
	What string `json:"what"`
}

// Diff compares two snapshots. Where the kernel has no IPv6, nothing is wanted of it.
func Diff(wanted, actual *ruledump.Snapshot) (*Difference, error) {
	if actual.IPv4Only {
		ipv4 := *wanted
		ipv4.Tables = slices.DeleteFunc(slices.Clone(wanted.Tables), func(t *nft.Table) bool { return t.Family != nft.FamilyIP })
		wanted = &ipv4
	}
	want, err := wanted.Frontends()
	if err != nil {
		return nil, err
	}
	have, err := actual.Frontends()
	if err != nil {
		return nil, err
	}
	d := &Difference{document: documentOf("Difference"), Services: []differentFrontend{}, Rules: []differentRule{}}
	d.compareFrontends(want, have)
	for _, family := range nft.Families {
		d.compareTables(wanted.Table(family), actual.Table(family))
	}
	d.Equal = len(d.Services) == 0 && len(d.Rules) == 0
	return d, nil
}

func (d *Difference) compareFrontends(want, have []*compiler.Frontend) {
	type identity struct {
		family nft.Family
		key    nft.Data
	}
	add := func(is string, f *compiler.Frontend, changes []changedProperty) {
		d.Services = append(d.Services, differentFrontend{
			is, f.ServicePort, string(f.Kind), f.Family.String(), addressOf(f), f.Protocol.String(), changes,
		})
	}
	actual := map[identity]*compiler.Frontend{}
	for _, f := range have {
		actual[identity{f.Family, f.Key()}] = f
	}
	for _, f := range want {
		id := identity{f.Family, f.Key()}
		if h := actual[id]; h == nil {
			add(missing, f, nil)
		} else if changes := changesOf(f, h); len(changes) > 0 {
			add(changed, f, changes)
		}
		delete(actual, id)
	}
	for _, f := range actual {
		add(unwanted, f, nil)
	}
	slices.SortFunc(d.Services, func(a, b differentFrontend) int {
		return cmp.Or(cmp.Compare(a.ServicePort, b.ServicePort), cmp.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Family, b.Family))
	})
}

func changesOf(want, have *compiler.Frontend) (out []changedProperty) {
	for _, p := range []struct {
		name       string
		want, have string
	}{
		{"Service port", want.ServicePort, have.ServicePort},
		{"kind", string(want.Kind), string(have.Kind)},
		{"policy", want.Policy, have.Policy},
		{"endpoints", endpoints(want.Endpoints), endpoints(have.Endpoints)},
		{"local endpoints", endpoints(want.LocalEndpoints), endpoints(have.LocalEndpoints)},
		{"without endpoint", string(want.Unserved), string(have.Unserved)},
		{"affinity", want.AffinityTimeout.String(), have.AffinityTimeout.String()},
		{"sources", sources(want.Sources), sources(have.Sources)},
		{"chain", want.Chain, have.Chain},
		{"chain of the cluster's clients", want.ShortCircuit, have.ShortCircuit},
	} {
		if p.want != p.have {
			out = append(out, changedProperty{p.name, p.want, p.have})
		}
	}
	return out
}

func endpoints(list []netip.AddrPort) string {
	return join(slices.SortedFunc(slices.Values(list), netip.AddrPort.Compare), ",") // slots may differ
}

func sources(list []netip.Prefix) string {
	if list == nil {
		return "all"
	}
	return join(list, " ")
}

func (d *Difference) compareTables(want, have *nft.Table) {
	switch {
	case want == nil && have == nil:
	case have == nil:
		d.Rules = append(d.Rules, differentRule{missing, tableName(want), "table"})
	case want == nil:
		d.Rules = append(d.Rules, differentRule{unwanted, tableName(have), "table"})
	default:
		for _, step := range nft.Diff(have, want).Steps {
			d.addStep(&step, have, want)
		}
	}
}

// addStep adds the differences that a step of the transaction from the actual to the wanted table would remove.
func (d *Difference) addStep(s *nft.Step, have, want *nft.Table) {
	where := tableName(s.Table)
	add := func(is, part, what string) {
		d.Rules = append(d.Rules, differentRule{is, strings.TrimSpace(where + " " + part), what})
	}
	switch s.Op {
	case nft.AddTable, nft.AdoptTable:
		if have.Comment != want.Comment || have.Owner != want.Owner ||
			have.Persist != want.Persist || have.Dormant != want.Dormant {
			add(missing, "", "table with its flags and comment")
		}
	case nft.DeleteTable, nft.DestroyTable:
		add(unwanted, "", "table of another shape")
	case nft.AddSet:
		add(missing, s.Set.Name, s.Set.Kind())
	case nft.DeleteSet:
		add(unwanted, s.Set.Name, s.Set.Kind())
	case nft.AddChain:
		if have.Chain(s.Chain.Name) == nil {
			add(missing, s.Chain.Name, "chain")
		}
	case nft.DeleteChain:
		add(unwanted, s.Chain.Name, "chain")
	case nft.DeleteObject:
		add(unwanted, s.Object.Name, s.Object.Kind)
	case nft.FlushChain:
		d.addRules(unwanted, where, s.Chain.Name, rulesOf(have, s.Chain.Name), rulesOf(want, s.Chain.Name))
	case nft.AddRules:
		d.addRules(missing, where, s.Chain.Name, s.Chain.Rules, rulesOf(have, s.Chain.Name))
	case nft.AddElements:
		d.addElements(missing, where, s)
	case nft.DeleteElements:
		d.addElements(unwanted, where, s)
	}
}

func rulesOf(t *nft.Table, chain string) []nft.Rule {
	if c := t.Chain(chain); c != nil {
		return c.Rules
	}
	return nil
}

// addRules adds those rules that the others do not have.
func (d *Difference) addRules(is, table, chain string, rules, others []nft.Rule) {
	for _, r := range rules {
		text := r.String()
		if !slices.ContainsFunc(others, func(o nft.Rule) bool { return o.String() == text }) {
			d.Rules = append(d.Rules, differentRule{is, table + " " + chain, text})
		}
	}
}

func (d *Difference) addElements(is, table string, s *nft.Step) {
	set := s.Set
	first := len(d.Rules)
	for e := range s.EachElement() {
		if found, ok := set.Element(e.Key); ok && is == missing {
			e = found
		}
		d.Rules = append(d.Rules, differentRule{is, table + " " + set.Name, set.FormatElement(e)})
	}
	slices.SortFunc(d.Rules[first:], func(a, b differentRule) int { return strings.Compare(a.What, b.What) })
}

// diffShown bounds the Services, and the elements and rules, that are printed.
const diffShown = 20

// Text implements View.
func (d *Difference) Text(p *Page) {
	if d.Settings != "" && !d.known {
		p.printf("compared with %s\n", d.Settings)
	}
	if d.Equal {
		p.WriteString("no difference\n")
	}
	shown := diffShown
	if d.all {
		shown = max(len(d.Services), len(d.Rules))
	}
	for _, s := range d.Services[:min(len(d.Services), shown)] {
		s.print(p)
	}
	p.more(len(d.Services)-shown, "… and %d more addresses of Services: --all prints them\n")
	if len(d.Rules) > 0 {
		p.printf("%s\n", p.bold(fmt.Sprintf("elements and rules: %d different", len(d.Rules))))
	}
	for _, r := range d.Rules[:min(len(d.Rules), shown)] {
		p.different(r.Is, "  ", fmt.Sprintf("%s: %s", r.Where, r.What))
	}
	p.more(len(d.Rules)-shown, "  … and %d more: --all prints them\n")
}

func (s *differentFrontend) print(p *Page) {
	text := fmt.Sprintf("%s %s/%s (%s)", s.ServicePort, s.Address, s.Protocol, s.Kind)
	switch s.Is {
	case missing:
		text += ": missing"
	case unwanted:
		text += ": not desired"
	}
	p.different(s.Is, "", text)
	for _, change := range s.Changes {
		p.printf("    %s: desired %s, actual %s\n",
			change.Property, cmp.Or(change.Wanted, "none"), cmp.Or(change.Actual, "none"))
	}
}

// different prints the line of a part that differs, with a sign and a colour.
func (p *Page) different(is, indent, text string) {
	switch is {
	case missing:
		p.printf("%s\n", p.bad(indent+"- "+text))
	case unwanted:
		p.printf("%s\n", p.good(indent+"+ "+text))
	default:
		p.printf("%s~ %s\n", indent, text)
	}
}
