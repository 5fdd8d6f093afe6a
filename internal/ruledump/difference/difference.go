// Package difference compares the wanted rules with those of a kernel: first as Services, then as
// elements, chains and rules.
package difference

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/ruledump/dump"
	"github.com/nftproxy/nftproxy/internal/ruledump/services"
	"github.com/nftproxy/nftproxy/internal/ruledump/snapshot"
	"github.com/nftproxy/nftproxy/nft"
)

// Difference holds the differences between the wanted rules and a kernel's. Its lists are empty, but not nil, if there
// are none.
type Difference struct {
	// APIVersion is dump.APIVersion.
	APIVersion string `json:"apiVersion"`
	// Kind is "Difference".
	Kind string `json:"kind"`
	// Settings names the settings of the wanted rules, such as "settings of the proxy at 127.0.0.1:10249".
	Settings string `json:"settings,omitempty"`
	// Equal says that there are no differences. Clients in maps of session affinity do not count.
	Equal bool `json:"equal"`
	// Services are the frontends that differ, sorted.
	Services []Service `json:"services"`
	// Rules are the elements, rules, chains, sets and tables that differ.
	Rules []Rule `json:"rules"`
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

// Service is a frontend that differs.
type Service struct {
	// Is is Missing, Unwanted or Changed.
	Is string `json:"is"`
	// ServicePort is the Service port of the frontend, such as "shop/web:http".
	ServicePort string `json:"servicePort"`
	// Kind is "ClusterIP", "External" or "NodePort".
	Kind string `json:"kind"`
	// Family is "ip" or "ip6".
	Family string `json:"family"`
	// Address is the address that clients dial, such as "10.96.0.10:80"; for a node port, ":30080".
	Address string `json:"address"`
	// Protocol is "TCP", "UDP" or "SCTP".
	Protocol string `json:"protocol"`
	// Changes are the properties that differ, if the frontend is Changed.
	Changes []Change `json:"changes,omitempty"`
}

// Change is a property of a frontend that differs.
type Change struct {
	// Property names it, such as "endpoints".
	Property string `json:"property"`
	// Wanted and Actual are the wanted value and the kernel's.
	Wanted string `json:"wanted"`
	Actual string `json:"actual"`
}

// Rule is an element, rule, chain, set or table that differs.
type Rule struct {
	// Is is Missing or Unwanted.
	Is string `json:"is"`
	// Where is the table, and the set or chain in it, such as "ip kube-proxy service-ips".
	Where string `json:"where"`
	// What is the element or rule as nft prints it; or "table", "chain", "set", "map" or another object if all of it
	// differs.
	What string `json:"what"`
}

// Of compares two snapshots. Where the kernel has no IPv6, nothing is wanted of it.
func Of(wanted, actual *snapshot.Snapshot) (*Difference, error) {
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
	d := &Difference{APIVersion: dump.APIVersion, Kind: "Difference", Services: []Service{}, Rules: []Rule{}}
	d.compareFrontends(want, have)
	for _, family := range nft.Families {
		d.compareTables(table(wanted, family), table(actual, family))
	}
	d.Equal = len(d.Services) == 0 && len(d.Rules) == 0
	return d, nil
}

// onlyIPv4 returns the snapshot without its table for IPv6.
func onlyIPv4(s *snapshot.Snapshot) *snapshot.Snapshot {
	out := *s
	out.Tables = nil
	if t := table(s, nft.FamilyIP); t != nil {
		out.Tables = []*nft.Table{t}
	}
	return &out
}

func table(s *snapshot.Snapshot, family nft.Family) *nft.Table {
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
			d.Services = append(d.Services, service(Missing, f))
		} else if changes := changesOf(f, h); len(changes) > 0 {
			s := service(Changed, f)
			s.Changes = changes
			d.Services = append(d.Services, s)
		}
	}
	for _, f := range actual {
		d.Services = append(d.Services, service(Unwanted, f))
	}
	slices.SortFunc(d.Services, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.ServicePort, b.ServicePort), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Family, b.Family))
	})
}

func service(is string, f *compiler.Frontend) Service {
	return Service{Is: is, ServicePort: f.ServicePort, Kind: string(f.Kind), Family: f.Family.String(), Address: services.Address(f), Protocol: f.Protocol.String()}
}

func changesOf(want, have *compiler.Frontend) (out []Change) {
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
			out = append(out, Change{p.name, p.want, p.have})
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
		d.Rules = append(d.Rules, Rule{Missing, name(want), "table"})
	case want == nil:
		d.Rules = append(d.Rules, Rule{Unwanted, name(have), "table"})
	default:
		for _, step := range nft.Diff(have, want).Steps {
			d.addStep(&step, have, want)
		}
	}
}

func name(t *nft.Table) string { return t.Family.String() + " " + t.Name }

// addStep adds the differences that a step of the transaction from the actual to the wanted table would remove.
func (d *Difference) addStep(s *nft.Step, have, want *nft.Table) {
	where := name(s.Table)
	add := func(is, part, what string) {
		d.Rules = append(d.Rules, Rule{is, strings.TrimSpace(where + " " + part), what})
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
			d.Rules = append(d.Rules, Rule{is, table + " " + chain, text})
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
		d.Rules = append(d.Rules, Rule{is, table + " " + set.Name, set.FormatElement(e)})
	}
	slices.SortFunc(d.Rules[first:], func(a, b Rule) int { return strings.Compare(a.What, b.What) })
}
