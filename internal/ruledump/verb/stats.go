package verb

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
)

func newStatsCommand() *cobra.Command {
	from := source{clients: true}
	format := newFormat("text", "json", "yaml", "metrics")
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count chains, rules, elements and clients",
		Long: `stats counts what is in the tables, estimates the kernel memory that they take, and says who
owns them and how full each map of session affinity is. On a live node it also looks for what
kube-proxy's modes iptables and ipvs left, which takes packets away from these rules.

With -o metrics it prints the text format of Prometheus, for the textfile collector of a node
exporter. The number of series does not depend on how many Services there are.`,
		Example: `  # Every minute, by cron.
  ruledump stats -o metrics > /var/lib/node_exporter/nftproxy.prom.new &&
    mv /var/lib/node_exporter/nftproxy.prom.new /var/lib/node_exporter/nftproxy.prom`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := from.open(cmd)
			if err != nil {
				return err
			}
			defer s.Close()
			counted, err := Stats(s.Snapshot)
			if err == nil && s.conn != nil {
				err = counted.AddLeftovers(cmd.Context())
			}
			if err != nil {
				return err
			}
			return format.write(cmd.OutOrStdout(), counted, func() error {
				if format.value == "metrics" {
					return counted.Metrics(cmd.OutOrStdout())
				}
				_, err := counted.WriteTo(cmd.OutOrStdout())
				return err
			})
		},
	}
	from.addTo(cmd)
	format.addTo(cmd)
	return cmd
}

// Statistics counts the contents of the tables of one node.
type Statistics struct {
	nodeDocument
	// Taken is when the tables were read.
	Taken time.Time `json:"taken,omitzero"`
	// Generation is the kernel's count of commits, by anybody.
	Generation uint32 `json:"generation,omitempty"`
	// Tables has an entry for each table, IPv4 first.
	Tables []tableStats `json:"tables"`
	// Frontends counts addresses and node ports.
	Frontends int `json:"frontends"`
	// ServicePorts counts the Service ports of the frontends.
	ServicePorts int `json:"servicePorts"`
	// Unserved counts the frontends that refuse or drop some clients because there is no endpoint for them.
	Unserved int `json:"unserved"`
	// Affinity has an entry for each map of session affinity, the fullest first.
	Affinity []affinityStats `json:"affinity"`
	// Leftovers are those of kube-proxy's other modes in the kernel, after AddLeftovers. They act on packets too.
	Leftovers []leftoverStats `json:"leftovers,omitempty"`
}

// leftoverStats counts the leftovers of one kind, such as "iptables-nft".
type leftoverStats struct {
	Kind    string `json:"kind"`
	Count   int    `json:"count"`
	Example string `json:"example"`
}

// AddLeftovers searches the network namespace of the calling thread for leftovers of kube-proxy's other modes.
func (s *Statistics) AddLeftovers(ctx context.Context) error {
	found, err := leftovers.Find(ctx)
	for _, l := range found {
		s.Leftovers = append(s.Leftovers, leftoverStats{string(l.Kind), l.Count, l.Example})
	}
	return err
}

// tableStats counts the contents of one table.
type tableStats struct {
	Family   string `json:"family"`
	Chains   int    `json:"chains"`
	Rules    int    `json:"rules"`
	Sets     int    `json:"sets"`
	Elements int    `json:"elements"`
	// MemoryBytes estimates the kernel's memory for the table.
	MemoryBytes int `json:"memoryBytes"`
	// Owner is the netlink port of the process that owns the table, in general its process id; 0 for none.
	Owner uint32 `json:"owner,omitempty"`
	// Foreign counts rules with statements that the proxy does not write, and objects other than chains and sets.
	Foreign int `json:"foreign"`
}

// affinityStats counts the clients in one map of session affinity, which has room for Size.
type affinityStats struct {
	Family  string `json:"family"`
	Map     string `json:"map"`
	Clients int    `json:"clients"`
	Size    int    `json:"size"`
}

// Stats counts the contents of a ruledump. Clients of session affinity count as far as they were read.
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
	}
	slices.SortFunc(out.Affinity, func(a, b affinityStats) int {
		return cmp.Or(b.Clients-a.Clients, strings.Compare(a.Map, b.Map), strings.Compare(a.Family, b.Family))
	})
	return out, nil
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
			if slices.ContainsFunc(r.Statements, isForeign) {
				out.Foreign++
			}
		}
	}
	for _, set := range t.Sets {
		out.Elements += set.Len()
		out.MemoryBytes += memoryOf(set)
		if set.Dynamic {
			s.Affinity = append(s.Affinity, affinityStats{Family: t.Family.String(), Map: set.Name, Clients: set.Len(), Size: int(cmp.Or(set.Size, nft.DefaultSize))})
		}
	}
	s.Tables = append(s.Tables, out)
}

func isForeign(s nft.Statement) bool {
	_, unknown := s.(nft.Unknown)
	return unknown
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

// affinityShown is how many maps are printed for people.
const affinityShown = 10

// WriteTo prints the statistics for people.
func (s *Statistics) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "node %s, %d frontends of %d Service ports, %d of them without an endpoint for some clients\n", ruledump.NodeText(s.Node, s.NodeSource), s.Frontends, s.ServicePorts, s.Unserved)
	if s.Generation != 0 {
		fmt.Fprintf(&b, "generation %d at %s\n", s.Generation, s.Taken.Format(time.RFC3339))
	}
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "\nTABLE\tCHAINS\tRULES\tSETS\tELEMENTS\tMEMORY (ESTIMATE)\tOWNER\tEXTERNAL")
	for _, t := range s.Tables {
		owner := "-"
		if t.Owner != 0 {
			owner = fmt.Sprint("port ", t.Owner)
		}
		fmt.Fprintf(tab, "%s\t%d\t%d\t%d\t%d\t%.1f MiB\t%s\t%d\n", t.Family, t.Chains, t.Rules, t.Sets, t.Elements, float64(t.MemoryBytes)/(1<<20), owner, t.Foreign)
	}
	if len(s.Affinity) > 0 {
		fmt.Fprintln(tab, "\nAFFINITY\tCLIENTS\tSIZE\tFULL")
	}
	for i, a := range s.Affinity {
		if i == affinityShown {
			fmt.Fprintf(tab, "… and %d more\n", len(s.Affinity)-i)
			break
		}
		fmt.Fprintf(tab, "%s %s\t%d\t%d\t%d%%\n", a.Family, a.Map, a.Clients, a.Size, 100*a.Clients/a.Size)
	}
	if err := tab.Flush(); err != nil {
		return 0, err
	}
	for _, l := range s.Leftovers {
		fmt.Fprintf(&b, "\nleft over from another mode of kube-proxy: %s, %d, such as %s; it may take packets before these rules do\n", l.Kind, l.Count, l.Example)
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// almostFull is from what part on a map counts as full in metrics, in percent.
const almostFull = 90

// Metrics prints the statistics in the text format of Prometheus, for the textfile collector of a node exporter. The
// number of series does not depend on how many Services there are.
func (s *Statistics) Metrics(w io.Writer) error {
	var b strings.Builder
	gauge := func(name, help string) {
		fmt.Fprintf(&b, "# HELP nftproxy_ruleset_%s %s\n# TYPE nftproxy_ruleset_%s gauge\n", name, help, name)
	}
	plain := func(name, help string, v int) {
		gauge(name, help)
		fmt.Fprintf(&b, "nftproxy_ruleset_%s %d\n", name, v)
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
			fmt.Fprintf(&b, "nftproxy_ruleset_%s{family=%q} %d\n", m.name, s.Tables[i].Family, m.of(&s.Tables[i]))
		}
	}
	clients, fullest, full := 0, 0, 0
	for _, a := range s.Affinity {
		clients += a.Clients
		percent := 100 * a.Clients / a.Size
		fullest = max(fullest, percent)
		if percent >= almostFull {
			full++
		}
	}
	plain("frontends", "Addresses and node ports that clients dial.", s.Frontends)
	plain("service_ports", "Service ports that the frontends are of, by IP family.", s.ServicePorts)
	plain("unserved_frontends", "Frontends that have no endpoint for some clients.", s.Unserved)
	plain("generation", "The kernel's count of nftables commits.", int(s.Generation))
	plain("affinity_maps", "Maps of session affinity.", len(s.Affinity))
	plain("affinity_clients", "Clients in all maps of session affinity.", clients)
	plain("affinity_fullest_percent", "How full the fullest map of session affinity is.", fullest)
	plain("affinity_full_maps", "Maps of session affinity that are full to 90 percent or more.", full)
	left := 0
	for _, l := range s.Leftovers {
		left += l.Count
	}
	plain("leftovers", "Chains and devices that kube-proxy's other modes left on the node.", left)
	_, err := io.WriteString(w, b.String())
	return err
}
