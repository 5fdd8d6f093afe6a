package verb

import (
	"cmp"
	"errors"
	"fmt"
	"io"
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
	format := newFormat("text", "json", "yaml")
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
		PreRunE: func(*cobra.Command, []string) error {
			if !from.isCompiled() {
				return errors.New("give " + compiledSources + ", the desired state")
			}
			return from.checkWanted()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := diff(cmd, &from)
			if err != nil {
				return err
			}
			err = format.write(cmd.OutOrStdout(), d, func() error {
				if from.config == "" {
					fmt.Fprintf(cmd.OutOrStdout(), "compared with %s\n", d.Settings)
				}
				return d.Text(cmd.OutOrStdout(), all, coloursFor(cmd.OutOrStdout()))
			})
			if err == nil && !d.Equal {
				err = errDifferent
			}
			return err
		},
	}
	from.addWanted(cmd)
	from.addActual(cmd)
	format.addTo(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "print everything that differs, not only the first 20 Services and the first 20 elements and rules")
	return cmd
}

func diff(cmd *cobra.Command, from *source) (*Difference, error) {
	actual, err := from.present(cmd)
	if err != nil {
		return nil, err
	}
	defer actual.Close()
	if err := checkSettings(cmd, from); err != nil {
		return nil, err
	}
	wanted, err := from.compile(cmd)
	if err != nil {
		return nil, err
	}
	if err := actual.NeedTables(); err != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "ruledump:", err)
	}
	d, err := Diff(wanted, actual.Snapshot)
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
		fmt.Fprintf(cmd.ErrOrStderr(), "ruledump: the proxy at %s says that this is node %s, and --node is %s\n", from.proxy.Address, from.proxy.Node, from.node)
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
	Equal bool `json:"equal"`
	// Services are the frontends that differ, sorted.
	Services []differentService `json:"services"`
	// Rules are the elements, rules, chains, sets and tables that differ.
	Rules []differentRule `json:"rules"`
}

// The kinds of differences.
const (
	// Missing is wanted and not there.
	Missing = "missing"
	// Unwanted is there and not wanted.
	Unwanted = "unwanted"
	// Changed is there, and differs from the wanted one.
	Changed = "changed"
)

// differentService is a frontend that is Missing, Unwanted or Changed.
type differentService struct {
	Is          string `json:"is"`
	ServicePort string `json:"servicePort"`
	Kind        string `json:"kind"`
	Family      string `json:"family"`
	// Address is the address that clients dial, such as "10.96.0.10:80"; for a node port, ":30080".
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	// Changes are the properties that differ, if the frontend is Changed.
	Changes []changedProperty `json:"changes,omitempty"`
}

// changedProperty is a property of a frontend that differs, with the wanted value and the kernel's.
type changedProperty struct {
	Property string `json:"property"`
	Wanted   string `json:"wanted"`
	Actual   string `json:"actual"`
}

// differentRule is an element, rule, chain, set or table that is Missing or Unwanted.
type differentRule struct {
	Is string `json:"is"`
	// Where is the table, and the set or chain in it, such as "ip kube-proxy service-ips".
	Where string `json:"where"`
	// What is the element or rule as nft prints it; or "table", "chain", "set", "map" or another object if all of it
	// differs.
	What string `json:"what"`
}

// Diff compares two snapshots. Where the kernel has no IPv6, nothing is wanted of it.
func Diff(wanted, actual *ruledump.Snapshot) (*Difference, error) {
	if actual.IPv4Only {
		wanted = onlyIPv4(wanted)
	}
	want, err := wanted.Frontends()
	if err != nil {
		return nil, err
	}
	have, err := actual.Frontends()
	if err != nil {
		return nil, err
	}
	d := &Difference{document: documentOf("Difference"), Services: []differentService{}, Rules: []differentRule{}}
	d.compareFrontends(want, have)
	for _, family := range nft.Families {
		d.compareTables(tableOf(wanted, family), tableOf(actual, family))
	}
	d.Equal = len(d.Services) == 0 && len(d.Rules) == 0
	return d, nil
}

// onlyIPv4 returns the snapshot without its table for IPv6.
func onlyIPv4(s *ruledump.Snapshot) *ruledump.Snapshot {
	out := *s
	out.Tables = nil
	if t := tableOf(s, nft.FamilyIP); t != nil {
		out.Tables = []*nft.Table{t}
	}
	return &out
}

func tableOf(s *ruledump.Snapshot, family nft.Family) *nft.Table {
	for _, t := range s.Tables {
		if t.Family == family {
			return t
		}
	}
	return nil
}

// identity identifies a frontend.
type identity struct {
	family nft.Family
	key    nft.Data
}

func (d *Difference) compareFrontends(want, have []*compiler.Frontend) {
	actual := map[identity]*compiler.Frontend{}
	for _, f := range have {
		actual[identity{f.Family, f.Key()}] = f
	}
	for _, f := range want {
		id := identity{f.Family, f.Key()}
		h := actual[id]
		delete(actual, id)
		if h == nil {
			d.Services = append(d.Services, differs(Missing, f))
		} else if changes := changesOf(f, h); len(changes) > 0 {
			s := differs(Changed, f)
			s.Changes = changes
			d.Services = append(d.Services, s)
		}
	}
	for _, f := range actual {
		d.Services = append(d.Services, differs(Unwanted, f))
	}
	slices.SortFunc(d.Services, func(a, b differentService) int {
		return cmp.Or(cmp.Compare(a.ServicePort, b.ServicePort), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Family, b.Family))
	})
}

func differs(is string, f *compiler.Frontend) differentService {
	return differentService{Is: is, ServicePort: f.ServicePort, Kind: string(f.Kind), Family: f.Family.String(), Address: addressOf(f), Protocol: f.Protocol.String()}
}

func changesOf(want, have *compiler.Frontend) (out []changedProperty) {
	for _, p := range []struct {
		name       string
		want, have string
	}{
		{"Service port", want.ServicePort, have.ServicePort},
		{"kind", string(want.Kind), string(have.Kind)},
		{"policy", want.Policy, have.Policy},
		{"endpoints", texts(want.Endpoints), texts(have.Endpoints)},
		{"local endpoints", texts(want.LocalEndpoints), texts(have.LocalEndpoints)},
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

func texts(list []netip.AddrPort) string {
	var out []string
	for _, a := range list {
		out = append(out, a.String())
	}
	slices.Sort(out) // slots may differ
	return strings.Join(out, ",")
}

func sources(list []netip.Prefix) string {
	if list == nil {
		return "all"
	}
	return strings.Trim(fmt.Sprint(list), "[]")
}

func (d *Difference) compareTables(want, have *nft.Table) {
	switch {
	case want == nil && have == nil:
	case have == nil:
		d.Rules = append(d.Rules, differentRule{Missing, tableName(want), "table"})
	case want == nil:
		d.Rules = append(d.Rules, differentRule{Unwanted, tableName(have), "table"})
	default:
		for _, step := range nft.Diff(have, want).Steps {
			d.addStep(&step, have, want)
		}
	}
}

func tableName(t *nft.Table) string { return t.Family.String() + " " + t.Name }

// addStep adds the differences that a step of the transaction from the actual to the wanted table would remove.
func (d *Difference) addStep(s *nft.Step, have, want *nft.Table) {
	where := tableName(s.Table)
	add := func(is, part, what string) {
		d.Rules = append(d.Rules, differentRule{is, strings.TrimSpace(where + " " + part), what})
	}
	switch s.Op {
	case nft.AddTable, nft.AdoptTable:
		if have.Comment != want.Comment || have.Owner != want.Owner || have.Persist != want.Persist || have.Dormant != want.Dormant {
			add(Missing, "", "table with its flags and comment")
		}
	case nft.DeleteTable, nft.DestroyTable:
		add(Unwanted, "", "table of another shape")
	case nft.AddSet:
		add(Missing, s.Set.Name, s.Set.Kind())
	case nft.DeleteSet:
		add(Unwanted, s.Set.Name, s.Set.Kind())
	case nft.AddChain:
		if have.Chain(s.Chain.Name) == nil {
			add(Missing, s.Chain.Name, "chain")
		}
	case nft.DeleteChain:
		add(Unwanted, s.Chain.Name, "chain")
	case nft.DeleteObject:
		add(Unwanted, s.Object.Name, s.Object.Kind)
	case nft.FlushChain:
		d.addRules(Unwanted, where, s.Chain.Name, rulesOf(have, s.Chain.Name), rulesOf(want, s.Chain.Name))
	case nft.AddRules:
		d.addRules(Missing, where, s.Chain.Name, s.Chain.Rules, rulesOf(have, s.Chain.Name))
	case nft.AddElements:
		d.addElements(Missing, where, s)
	case nft.DeleteElements:
		d.addElements(Unwanted, where, s)
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
		if found, ok := set.Element(e.Key); ok && is == Missing {
			e = found
		}
		d.Rules = append(d.Rules, differentRule{is, table + " " + set.Name, set.FormatElement(e)})
	}
	slices.SortFunc(d.Rules[first:], func(a, b differentRule) int { return strings.Compare(a.What, b.What) })
}

// diffShown is how many Services, and how many elements and rules, are printed.
const diffShown = 20

// Text prints the difference for people: of Services, and of the rules behind them, the first 20 each, or all.
func (d *Difference) Text(w io.Writer, all bool, c Colours) error {
	var b strings.Builder
	if d.Equal {
		b.WriteString("no difference\n")
	}
	for i := range d.Services {
		if i == diffShown && !all {
			fmt.Fprintf(&b, "… and %d more addresses of Services: --all prints them\n", len(d.Services)-i)
			break
		}
		d.Services[i].print(&b, c)
	}
	if len(d.Rules) > 0 {
		fmt.Fprintf(&b, "%s\n", c.Bold(fmt.Sprintf("elements and rules: %d different", len(d.Rules))))
	}
	for i, r := range d.Rules {
		if i == diffShown && !all {
			fmt.Fprintf(&b, "  … and %d more: --all prints them\n", len(d.Rules)-i)
			break
		}
		b.WriteString(coloured(c, r.Is, fmt.Sprintf("  %s %s: %s", signs[r.Is], r.Where, r.What)) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

var signs = map[string]string{Missing: "-", Unwanted: "+", Changed: "~"}

// coloured colours the line of a difference by its kind.
func coloured(c Colours, is, line string) string {
	switch is {
	case Missing:
		return c.Bad(line)
	case Unwanted:
		return c.Good(line)
	}
	return line
}

func (s *differentService) print(b *strings.Builder, c Colours) {
	line := fmt.Sprintf("%s %s %s/%s (%s)", signs[s.Is], s.ServicePort, s.Address, s.Protocol, s.Kind)
	switch s.Is {
	case Missing:
		line += ": missing"
	case Unwanted:
		line += ": not desired"
	}
	b.WriteString(coloured(c, s.Is, line) + "\n")
	for _, change := range s.Changes {
		fmt.Fprintf(b, "    %s: desired %s, actual %s\n", change.Property, orNone(change.Wanted), orNone(change.Actual))
	}
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}
