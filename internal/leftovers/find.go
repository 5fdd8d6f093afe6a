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
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

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
	// Example is one of them, in the words of an administrator: "ip nat KUBE-SERVICES", or "kube-ipvs0".
	Example string
	// tables have chains to remove. For IPVS there are none.
	tables []table
}

// table names a table of iptables-nft or of iptables-legacy.
type table struct {
	family nft.Family
	name   string
}

// places say for each variant of iptables how to list the chains of a table, and how to remove those of kube-proxy.
var places = []struct {
	kind   Kind
	chains func(context.Context, table) ([]string, error)
	remove func(context.Context, []table) (Removal, error)
}{
	{NFT, nftChains, removeNFT},
	{Legacy, legacyChains, removeLegacy},
}

// Find returns the leftovers of kube-proxy's other modes in the network namespace of the calling thread, at
// most one Leftover of each kind. It changes nothing, needs CAP_NET_ADMIN, and loads no kernel module. Where it
// cannot look, the error says so; Find returns the leftovers of other places all the same.
func Find(ctx context.Context) ([]Leftover, error) {
	found, err := list(ctx)
	return slices.DeleteFunc(found, func(l Leftover) bool { return l.Count == 0 }), err
}

// list is Find, and lists in addition tables that have none but shared chains, which do not count.
func list(ctx context.Context) (found []Leftover, err error) {
	var errs []error
	add := func(l Leftover, names []string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("look for what %s left: %w", l.Kind, err))
		}
		if l.Count = len(names); l.Count > 0 {
			l.Example = names[0]
		}
		if l.Count > 0 || len(l.tables) > 0 {
			found = append(found, l)
		}
	}
	for _, place := range places {
		l := Leftover{Kind: place.kind}
		var names []string
		err := eachTable(func(t table) error {
			chains, err := place.chains(ctx, t)
			if slices.ContainsFunc(chains, isRemovable) {
				l.tables = append(l.tables, t)
			}
			for _, c := range chains {
				if isProxyChain(c) {
					names = append(names, t.chain(c))
				}
			}
			return err
		})
		add(l, names, err)
	}
	names, err := ipvsLeftovers()
	add(Leftover{Kind: IPVS}, names, err)
	return found, errors.Join(errs...)
}

// eachTable calls use with the tables in which kube-proxy has chains, until it returns an error.
func eachTable(use func(table) error) error {
	for _, family := range nft.Families {
		for _, name := range []string{"nat", "filter", "mangle"} {
			if err := use(table{family, name}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Removal is the result of Remove.
type Removal struct {
	// Removed are the chains that are gone, as in Leftover.Example, and of the mode ipvs the virtual servers, the device and
	// the sets.
	Removed []string
	// Kept are chains of kube-proxy that stay, because a rule of another program leads to them, and sets that one names.
	Kept []string
	// Draining is not zero if something waits for the end of connections of the mode ipvs. Then its rules stay too.
	Draining Draining
	// Ended counts the connections of the mode ipvs that went with their virtual servers.
	Ended int
	// Back is one of Removed that an earlier Remove had removed too: another kube-proxy made it again. Else it is empty.
	Back string
}

// Remover removes leftovers. Its zero value waits for no connection.
type Remover struct {
	// DrainTimeout limits how long connections of the mode ipvs keep their virtual servers, counted from the Remove that
	// found them.
	DrainTimeout time.Duration
	// Excluded are addresses of virtual servers of other programs, as in kube-proxy's --ipvs-exclude-cidrs.
	Excluded []netip.Prefix

	// begun is zero while there is nothing to wait for.
	begun time.Time
	// removed has what is gone.
	removed map[removed]bool
}

// removed names one of Removal.Removed: both variants of iptables can have chains of one name.
type removed struct {
	kind Kind
	name string
}

// Remove removes the chains that kube-proxy's other modes made with iptables-nft and iptables-legacy, and the rules of
// base chains that lead to them. The rules of other programs, among them the kubelet's, stay, and so do the tables. In
// nf_tables it removes all of them in one transaction, in iptables-legacy those of each table at once: packets
// see all of the old rules of a table or none. It begins with the virtual servers of the mode ipvs and kube-ipvs0, and
// ends with the sets. While connections of the mode ipvs keep some of it, Removal.Draining says so, and another Remove
// goes on. An interrupted removal is completed by the next one.
func (r *Remover) Remove(ctx context.Context) (Removal, error) {
	found, err := list(ctx)
	removal, failure := r.remove(ctx, found)
	return removal, errors.Join(err, failure)
}

// remove removes what was found.
func (r *Remover) remove(ctx context.Context, found []Leftover) (removal Removal, err error) {
	removal, err = r.drain(ctx)
	removal.Back = r.record(IPVS, removal.Removed)
	if err != nil {
		return removal, fmt.Errorf("remove what %s left: %w", IPVS, err)
	}
	if removal.Draining != (Draining{}) {
		return removal, nil
	}
	var errs []error
	add := func(kind Kind, more Removal, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("remove what %s left: %w", kind, err))
		}
		removal.Removed, removal.Kept = append(removal.Removed, more.Removed...), append(removal.Kept, more.Kept...)
		removal.Back = cmp.Or(removal.Back, r.record(kind, more.Removed))
	}
	for _, place := range places {
		for _, l := range found {
			if l.Kind == place.kind {
				more, err := place.remove(ctx, l.tables)
				add(l.Kind, more, err)
			}
		}
	}
	if len(errs) == 0 {
		more, err := destroyIPSets(ctx)
		add(IPVS, more, err)
	}
	return removal, errors.Join(errs...)
}

// record notes what is gone, and returns a name that had gone before. A shared chain does not count: a kubelet can make it.
func (r *Remover) record(kind Kind, names []string) (back string) {
	if r.removed == nil {
		r.removed = map[removed]bool{}
	}
	for _, name := range names {
		isShared := slices.ContainsFunc(sharedChains, func(chain string) bool { return strings.HasSuffix(name, " "+chain) })
		if r.removed[removed{kind, name}] && !isShared {
			back = name
		}
		r.removed[removed{kind, name}] = true
	}
	return back
}

// chain names a chain of the table as iptables-save and nft do.
func (t table) chain(name string) string { return fmt.Sprintf("%s %s %s", t.family, t.name, name) }

// retry calls read up to a hundred times while other programs change the rules. Another proxy may do so many times a
// second.
func retry[T any](read func() (T, error)) (out T, err error) {
	for range 100 {
		out, err = read()
		if !errors.Is(err, nft.ErrGenerationMoved) && !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return out, err
}

// Names of chains in kube-proxy v1.36's modes iptables and ipvs, and in those of older versions.
//
// The kubelet has chains of its own, which no proxy may touch: KUBE-FIREWALL, KUBE-IPTABLES-HINT,
// KUBE-KUBELET-CANARY, and KUBE-MARK-DROP before v1.27. Network plugins have others that begin with KUBE-, such as
// kube-router's KUBE-ROUTER-INPUT and KUBE-NWPLCY-…. So the prefix KUBE- alone decides nothing.
var (
	proxyChains = []string{
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	}
	// servicePrefixes are those of chains of one Service or endpoint.
	servicePrefixes = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-"}
	// sharedChains are made by kubelets before v1.27 too, and network plugins may use them: the CNI plugin
	// portmap jumps to KUBE-MARK-MASQ if told to. Alone they do nothing to Services, so they are no sign of another mode.
	sharedChains = []string{markChain, postroutingChain}
)

const (
	markChain        = "KUBE-MARK-MASQ"
	postroutingChain = "KUBE-POSTROUTING"
)

// isProxyChain reports whether only kube-proxy makes chains of that name.
func isProxyChain(name string) bool {
	return slices.Contains(proxyChains, name) ||
		slices.ContainsFunc(servicePrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// isRemovable reports whether kube-proxy --cleanup removes chains of that name.
func isRemovable(name string) bool { return isProxyChain(name) || slices.Contains(sharedChains, name) }

// isEntrance reports whether kube-proxy makes rules in base chains that lead to the chain. Such a rule to another chain is
// somebody else's.
func isEntrance(name string) bool {
	return slices.Contains(proxyChains, name) || name == postroutingChain
}

// jump is a rule that leads from one chain to another. from is empty for a base chain.
type jump struct{ from, to string }

// doomedChains returns which of a table's chains to remove. It keeps a chain if a rule of another program leads to
// it, and then all chains that it leads to itself.
func doomedChains(chains []string, jumps []jump) (doomed map[string]bool) {
	doomed = map[string]bool{}
	for _, c := range chains {
		doomed[c] = isRemovable(c)
	}
	for changed := true; changed; {
		changed = false
		keep := func(name string) {
			changed = changed || doomed[name]
			doomed[name] = false
		}
		for _, j := range jumps {
			if j.from == "" && !isEntrance(j.to) || j.from != "" && !doomed[j.from] {
				keep(j.to)
			}
		}
		if mark, exists := doomed[markChain]; exists && !mark {
			keep(postroutingChain) // it masquerades the packets that the other marks
		}
	}
	return doomed
}

// add records what becomes of a table's chains.
func (r *Removal) add(t table, chains []string, doomed map[string]bool) {
	for _, c := range chains {
		switch {
		case doomed[c]:
			r.Removed = append(r.Removed, t.chain(c))
		case isRemovable(c):
			r.Kept = append(r.Kept, t.chain(c))
		}
	}
}
