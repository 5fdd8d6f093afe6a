package verb

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
)

func newStatsCommand() *cobra.Command {
	from := source{clients: true}
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count chains, rules, elements and clients",
		Long: `stats counts what is in the tables, estimates the kernel memory that they take, and says who
owns them and how full each map of session affinity is. Where the proxy counts (feature gate
NFTProxyRefusedCounters) it lists whose clients were refused, and why. On a live node it also
looks for what kube-proxy's modes iptables and ipvs left, which takes packets away from these
rules.

With -o metrics it prints the text format of Prometheus, for the textfile collector of a node
exporter. The number of series does not depend on how many Services there are.`,
		Example: `  # Every minute, by cron.
  ruledump stats -o metrics > /var/lib/node_exporter/nftproxy.prom.new &&
    mv /var/lib/node_exporter/nftproxy.prom.new /var/lib/node_exporter/nftproxy.prom`,
		Args: cobra.NoArgs,
	}
	from.addTo(cmd)
	return from.shows(cmd, newFormat("text", "json", "metrics"), func(cmd *cobra.Command, s *ruledump.Snapshot, _ Filter) (View, error) {
		counted, err := Stats(s)
		if err == nil && from.conn != nil {
			err = counted.addLeftovers(cmd.Context())
		}
		if err == nil && s.Files != nil {
			err = counted.takeLeftovers(s)
		}
		return counted, err
	})
}

// Statistics counts the contents of the tables of one node, IPv4 first.
type Statistics struct {
	nodeDocument
	Taken        time.Time    `json:"taken,omitzero"`       // time at which the tables were read
	Generation   uint32       `json:"generation,omitempty"` // the kernel's count of commits, by anybody
	Tables       []tableStats `json:"tables"`
	Frontends    int          `json:"frontends"`    // addresses and node ports
	ServicePorts int          `json:"servicePorts"` // Service ports of the frontends, by IP family
	// Unserved: frontends that refuse or drop some clients, because there is no endpoint for them
	Unserved int             `json:"unserved"`
	Affinity []affinityStats `json:"affinity"` // maps of session affinity, the fullest first
	// Refused counts packets that were refused or dropped, each try again, where the proxy counts; the most first.
	// Only the kernel and dumps have counts.
	Refused []refusedCount `json:"refused,omitempty"`
	// Leftovers of kube-proxy's other modes are searched in the running kernel alone.
	Leftovers []leftoverStats `json:"leftovers,omitempty"`
}

type tableStats struct {
	Family      string `json:"family" jsonschema:"enum=ip,enum=ip6"`
	Chains      int    `json:"chains"`
	Rules       int    `json:"rules"`
	Sets        int    `json:"sets"`
	Elements    int    `json:"elements"`
	MemoryBytes int    `json:"memoryBytes"`     // an estimate
	Owner       uint32 `json:"owner,omitempty"` // netlink port of the table's owner
	// Foreign: rules with statements that the proxy does not write, and objects other than chains and sets
	Foreign int `json:"foreign"`
}

type affinityStats struct {
	Family  string `json:"family" jsonschema:"enum=ip,enum=ip6"`
	Map     string `json:"map"`
	Clients int    `json:"clients"`
	Size    int    `json:"size"` // room for clients
}

// refusedCount counts packets of clients that were refused or dropped, since their frontend is in the kernel's set.
type refusedCount struct {
	// ServicePort is the Service alone for an unknown port, and empty for an address that no Service holds.
	ServicePort string `json:"servicePort"`
	Reason      string `json:"reason" jsonschema:"enum=no-endpoints,enum=policy-local,enum=source-not-allowed,enum=unknown-port,enum=unassigned-address,enum=unknown-connection,enum=foreign-rule"`
	Packets     uint64 `json:"packets"`
}

func (a affinityStats) percent() int { return 100 * a.Clients / a.Size }

type leftoverStats struct {
	Kind    string `json:"kind" jsonschema:"enum=iptables-nft,enum=iptables-legacy,enum=ipvs"`
	Count   int    `json:"count"`
	Example string `json:"example"`
}

// addLeftovers searches the network namespace of the calling thread for leftovers of kube-proxy's other modes.
func (s *Statistics) addLeftovers(ctx context.Context) error {
	found, err := leftovers.Find(ctx)
	for _, l := range found {
		s.Leftovers = append(s.Leftovers, leftoverStats{string(l.Kind), l.Count, l.Example})
	}
	return err
}

// takeLeftovers takes the leftovers that a report found.
func (s *Statistics) takeLeftovers(rules *ruledump.Snapshot) error {
	reported, err := fromFile[Statistics](rules, statsFile)
	if reported != nil {
		s.Leftovers = reported.Leftovers
	}
	return err
}

// Stats counts what a snapshot holds. Clients of session affinity count as far as they were read.
func Stats(s *ruledump.Snapshot) (*Statistics, error) {
	out := &Statistics{nodeDocument: aboutNode("Statistics", s), Taken: s.Taken, Generation: s.Generation, Tables: []tableStats{}, Affinity: []affinityStats{}}
	frontends, err := s.Frontends()
	if err != nil {
		return nil, err
	}
	ports := map[string]bool{}
	for _, f := range frontends {
		out.Frontends++
		ports[f.ServicePort+f.Protocol.String()+f.Family.String()] = true
		if f.Unserved != "" {
			out.Unserved++
		}
	}
	out.ServicePorts = len(ports)
	for _, t := range s.Tables {
		out.addTable(t)
		if s.KubeProxys() {
			out.Tables[len(out.Tables)-1].Foreign = 0 // its rules have more expressions than this program writes
		}
	}
	out.addRefused(s)
	slices.SortFunc(out.Affinity, func(a, b affinityStats) int {
		return cmp.Or(b.Clients-a.Clients, strings.Compare(a.Map, b.Map), strings.Compare(a.Family, b.Family))
	})
	return out, nil
}

func (s *Statistics) addRefused(from *ruledump.Snapshot) {
	sums := map[refusedCount]uint64{}
	for set, counts := range from.Counts {
		for key, n := range counts {
			e, _ := from.Table(set.Family).Set(set.Set).Element(key)
			if counted := compiler.CountedBy(set.Set, e); counted.Refused() && n.Packets > 0 {
				sums[refusedCount{ServicePort: e.Comment, Reason: counted.String()}] += n.Packets
			}
		}
	}
	for of, packets := range sums {
		of.Packets = packets
		s.Refused = append(s.Refused, of)
	}
	slices.SortFunc(s.Refused, func(a, b refusedCount) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.ServicePort, b.ServicePort), cmp.Compare(a.Reason, b.Reason))
	})
}

func (s *Statistics) addTable(t *nft.Table) {
	out := tableStats{Family: t.Family.String(), Chains: len(t.Chains), Sets: len(t.Sets)}
	if k := t.Kernel; k != nil {
		out.Owner, out.Foreign = k.OwnerPort, len(k.Objects)
	}
	for _, c := range t.Chains {
		out.Rules += len(c.Rules)
		out.MemoryBytes += chainBytes
		for _, r := range c.Rules {
			out.MemoryBytes += ruleBytes
			if r.External() {
				out.Foreign++
			}
		}
	}
	for _, set := range t.Sets {
		out.Elements += set.Len()
		out.MemoryBytes += memoryOf(set)
		if compiler.IsAffinityMap(set.Name) {
			s.Affinity = append(s.Affinity, affinityStats{Family: t.Family.String(), Map: set.Name, Clients: set.Len(), Size: int(cmp.Or(set.Size, nft.DefaultSize))})
		}
	}
	s.Tables = append(s.Tables, out)
}

// What the kernel allocates, roughly, on a machine of 64 bits: structures of net/netfilter/nf_tables_api.c and of the
// hash sets, rounded up as its allocator does.
const (
	chainBytes = 512
	ruleBytes  = 512
	setBytes   = 1024
	// elementBytes is a hash node, a bucket and the header of the extensions, without what these hold.
	elementBytes = 16 + 8 + 16
	// verdictBytes is a verdict with the chain that it leads to.
	verdictBytes = 16
	commentBytes = 4
	timeoutBytes = 16
)

// memoryOf estimates what the kernel needs for a set.
func memoryOf(s *nft.Set) int {
	bytes := setBytes
	for _, e := range s.Elements() {
		n := elementBytes + len(e.Key) + len(e.KeyEnd) + len(e.Value)
		if s.Verdicts {
			n += verdictBytes
		}
		if e.Comment != "" {
			n += commentBytes + len(e.Comment)
		}
		if s.Dynamic {
			n += timeoutBytes
		}
		bytes += (n + 15) / 16 * 16
	}
	return bytes
}

// statsShown bounds the maps of affinity, and the refused Service ports, that are printed for people.
const statsShown = 10

// Text implements View.
func (s *Statistics) Text(p *Page) {
	if p.Format == "metrics" {
		s.metrics(p)
		return
	}
	p.printf("node %s, %d frontends of %d Service ports, %d of them without an endpoint for some clients\n", s.nodeText(), s.Frontends, s.ServicePorts, s.Unserved)
	if s.Generation != 0 {
		p.printf("generation %d at %s\n", s.Generation, s.Taken.Format(time.RFC3339))
	}
	head := []string{"TABLE", "CHAINS", "RULES", "SETS", "ELEMENTS", "MEMORY (ESTIMATE)", "OWNER", "EXTERNAL"}
	p.WriteByte('\n')
	table(p, head, s.Tables, func(t tableStats) []any {
		owner := "-"
		if t.Owner != 0 {
			owner = fmt.Sprint("port ", t.Owner)
		}
		memory := fmt.Sprintf("%.1f MiB", float64(t.MemoryBytes)/(1<<20))
		return []any{t.Family, t.Chains, t.Rules, t.Sets, t.Elements, memory, owner, t.Foreign}
	}, nil)
	firstRows(p, []string{"AFFINITY", "CLIENTS", "SIZE", "FULL"}, s.Affinity, func(a affinityStats) []any {
		return []any{a.Family + " " + a.Map, a.Clients, a.Size, fmt.Sprint(a.percent(), "%")}
	})
	firstRows(p, []string{"REFUSED", "REASON", "PACKETS"}, s.Refused, func(r refusedCount) []any {
		return []any{orDash(r.ServicePort), r.Reason, r.Packets}
	})
	for _, l := range s.Leftovers {
		p.printf("\nleft over from another mode of kube-proxy: %s, %d, such as %s; it may take packets before these rules do\n", l.Kind, l.Count, l.Example)
	}
}

// firstRows prints a table of the first values of a list, if there are any.
func firstRows[T any](p *Page, head []string, list []T, row func(T) []any) {
	if len(list) == 0 {
		return
	}
	p.WriteByte('\n')
	table(p, head, list[:min(len(list), statsShown)], row, nil)
	p.more(len(list)-statsShown, "… and %d more\n")
}

// almostFull is the percentage from which a map counts as full in metrics.
const almostFull = 90

// metrics prints the text format of Prometheus, for the textfile collector of a node exporter.
func (s *Statistics) metrics(p *Page) {
	gauge := func(name, help string) {
		p.printf("# HELP nftproxy_ruleset_%s %s\n# TYPE nftproxy_ruleset_%[1]s gauge\n", name, help)
	}
	for _, m := range []struct {
		name, help string
		of         func(*tableStats) int
	}{
		{"chains", "Chains in the table.", func(t *tableStats) int { return t.Chains }},
		{"rules", "Rules in the table.", func(t *tableStats) int { return t.Rules }},
		{"sets", "Sets and maps in the table.", func(t *tableStats) int { return t.Sets }},
		{"elements", "Elements in the table.", func(t *tableStats) int { return t.Elements }},
		{"memory_bytes", "Estimate of the kernel memory that the table takes.", func(t *tableStats) int { return t.MemoryBytes }},
		{"owned", "1 if a process owns the table, else 0.", func(t *tableStats) int { return min(int(t.Owner), 1) }},
		{"foreign", "Rules and objects in the table that the proxy does not write.", func(t *tableStats) int { return t.Foreign }},
	} {
		gauge(m.name, m.help)
		for i := range s.Tables {
			p.printf("nftproxy_ruleset_%s{family=%q} %d\n", m.name, s.Tables[i].Family, m.of(&s.Tables[i]))
		}
	}
	clients, fullest, full, left := 0, 0, 0, 0
	for _, a := range s.Affinity {
		clients += a.Clients
		fullest = max(fullest, a.percent())
		if a.percent() >= almostFull {
			full++
		}
	}
	for _, l := range s.Leftovers {
		left += l.Count
	}
	for _, m := range []struct {
		name, help string
		value      int
	}{
		{"frontends", "Addresses and node ports that clients dial.", s.Frontends},
		{"service_ports", "Service ports that the frontends are of, by IP family.", s.ServicePorts},
		{"unserved_frontends", "Frontends that have no endpoint for some clients.", s.Unserved},
		{"generation", "The kernel's count of nftables commits.", int(s.Generation)},
		{"affinity_maps", "Maps of session affinity.", len(s.Affinity)},
		{"affinity_clients", "Clients in all maps of session affinity.", clients},
		{"affinity_fullest_percent", "How full the fullest map of session affinity is.", fullest},
		{"affinity_full_maps", "Maps of session affinity that are full to 90 percent or more.", full},
		{"leftovers", "Chains and devices that kube-proxy's other modes left on the node.", left},
	} {
		gauge(m.name, m.help)
		p.printf("nftproxy_ruleset_%s %d\n", m.name, m.value)
	}
}
