// Package leftovers finds rules that kube-proxy's other modes, iptables and ipvs, left on a node, and removes
// those that can be removed safely.
//
// A swap of the image from the mode iptables leaves its rules in the kernel. They go on sending connections to Services
// that were changed or deleted since, and nothing else shows it. kube-proxy removes them when it starts in another mode,
// and so does [Watch].
//
// The package looks in these places, and runs no program: the nf_tables tables that iptables-nft makes (over
// netlink), the tables of iptables-legacy (over getsockopt and setsockopt), and for the mode ipvs the device kube-ipvs0,
// sets, and virtual servers (over netlink).
package leftovers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// Kind is a kind of leftovers: the program, or mode, that left them.
type Kind string

// The kinds.
const (
	// NFT are chains that iptables-nft, or ip6tables-nft, made in nf_tables.
	NFT Kind = "iptables-nft"
	// Legacy are chains in the tables of iptables-legacy, or ip6tables-legacy.
	Legacy Kind = "iptables-legacy"
	// IPVS are kube-ipvs0, the device with the addresses of all Services in the mode ipvs, and the sets of that mode.
	IPVS Kind = "ipvs"
)

// Kinds has all kinds.
var Kinds = []Kind{NFT, Legacy, IPVS}

// Leftover counts the leftovers of one kind.
type Leftover struct {
	Kind Kind
	// Count is the number of chains; for IPVS, of sets and devices.
	Count int
	// Example is the name of one leftover, such as "ip nat KUBE-SERVICES" or "kube-ipvs0".
	Example string
	// tables have chains to remove. For IPVS there are none.
	tables []foundTable
	// signs are the leftovers that every kube-proxy of the mode makes, whatever Services there are.
	signs []string
}

// table names a table of iptables-nft or of iptables-legacy.
type table struct {
	family nft.Family
	name   string
}

// tableNames are the tables in which kube-proxy has chains.
var tableNames = []string{"nat", "filter", "mangle"}

// foundTable is a table with chains of kube-proxy.
type foundTable struct {
	table
	// chains are the chains that only kube-proxy makes, callers before callees. shared are the sharedChains of the table.
	chains, shared []string
}

// newFoundTable selects the removable chains of a table.
func newFoundTable(t table, names []string) foundTable {
	found := foundTable{table: t}
	for _, name := range names {
		switch {
		case isProxyChain(name):
			found.chains = append(found.chains, name)
		case isRemovable(name):
			found.shared = append(found.shared, name)
		}
	}
	slices.SortFunc(found.chains, func(a, b string) int { return cmp.Or(cmp.Compare(depth(a), depth(b)), cmp.Compare(a, b)) })
	found.chains = slices.Compact(found.chains) // a listing during commits can have one twice
	slices.Sort(found.shared)
	found.shared = slices.Compact(found.shared)
	return found
}

// places say for each variant of iptables how to find kube-proxy's chains, and how to remove them.
var places = []struct {
	kind   Kind
	find   func(context.Context) ([]foundTable, error)
	remove func(ctx context.Context, found []foundTable, keepShared bool) (Removal, error)
}{
	{NFT, findNFT, removeNFT},
	{Legacy, findLegacy, removeLegacy},
}

// Find returns the leftovers of kube-proxy's other modes in the network namespace of the calling thread, at
// most one Leftover of each kind. It changes nothing, needs CAP_NET_ADMIN, and loads no kernel module. Where it
// cannot look, the error says so; Find returns the leftovers of other places all the same. If other programs commit during
// the listing, the counts may be off.
func Find(ctx context.Context) ([]Leftover, error) {
	found, err := list(ctx)
	return slices.DeleteFunc(found, func(l Leftover) bool { return l.Count == 0 }), err
}

// list is Find, but also returns tables that have shared chains only. Shared chains do not count as leftovers.
func list(ctx context.Context) (found []Leftover, err error) {
	var errs []error
	fail := func(kind Kind, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("look for what %s left: %w", kind, err))
		}
	}
	for _, place := range places {
		tables, err := place.find(ctx)
		fail(place.kind, err)
		if len(tables) > 0 {
			found = append(found, newLeftover(place.kind, tables))
		}
	}
	names, err := ipvsLeftovers()
	fail(IPVS, err)
	if len(names) > 0 {
		found = append(found, Leftover{Kind: IPVS, Count: len(names), Example: names[0], signs: names})
	}
	return found, errors.Join(errs...)
}

func newLeftover(kind Kind, tables []foundTable) Leftover {
	l := Leftover{Kind: kind, tables: tables}
	for _, t := range tables {
		if l.Count += len(t.chains); l.Example == "" && len(t.chains) > 0 {
			l.Example = t.chain(t.chains[0])
		}
		for _, c := range t.chains {
			if isFixed(c) {
				l.signs = append(l.signs, t.chain(c))
			}
		}
	}
	return l
}

// chain names a chain of the table as iptables-save and nft do.
func (t table) chain(name string) string { return fmt.Sprintf("%s %s %s", t.family, t.name, name) }

// Names of chains of the modes iptables and ipvs in kube-proxy v1.36 and in older versions.
//
// The kubelet has chains of its own, which no proxy may touch: KUBE-FIREWALL, KUBE-IPTABLES-HINT,
// KUBE-KUBELET-CANARY, and KUBE-MARK-DROP before v1.27. Network plugins have others that begin with KUBE-, such as
// kube-router's KUBE-ROUTER-INPUT and KUBE-NWPLCY-…. So the prefix KUBE- alone decides nothing.
var (
	proxyChains = []string{
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	}
	// servicePrefixes begin the names of chains for one Service or endpoint. A chain calls chains of later prefixes only.
	servicePrefixes = []string{"KUBE-FW-", "KUBE-XLB-", "KUBE-EXT-", "KUBE-SVL-", "KUBE-SVC-", "KUBE-SEP-"}
	// sharedChains are made by kubelets before v1.27 too, and network plugins may use them: the CNI plugin
	// portmap jumps to KUBE-MARK-MASQ if told to. Alone they do nothing to Services, so they are no sign of another mode.
	sharedChains = []string{markChain, postroutingChain}
)

const (
	markChain        = "KUBE-MARK-MASQ"
	postroutingChain = "KUBE-POSTROUTING"
)

// depth orders chains so that most of them come before the chains that they call.
func depth(chain string) int {
	return slices.IndexFunc(servicePrefixes, func(prefix string) bool { return strings.HasPrefix(chain, prefix) })
}

// isFixed reports whether the name of the chain depends on no Service.
func isFixed(chain string) bool { return slices.Contains(proxyChains, chain) }

// isProxyChain reports whether only kube-proxy makes chains of that name.
func isProxyChain(name string) bool { return isFixed(name) || depth(name) >= 0 }

// isRemovable reports whether kube-proxy --cleanup removes chains of that name.
func isRemovable(name string) bool { return isProxyChain(name) || slices.Contains(sharedChains, name) }

// isEntrance reports whether kube-proxy makes rules in base chains that jump to the chain. A rule in a base chain that jumps
// to another chain belongs to another program.
func isEntrance(name string) bool { return isFixed(name) || name == postroutingChain }
