package leftovers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Names counts names, of which there can be many, and keeps the first.
type Names struct {
	Count int
	// First are the first ten.
	First []string
}

func (n *Names) add(name string) {
	if n.Count++; n.Count <= 10 {
		n.First = append(n.First, name)
	}
}

func (n *Names) append(more Names) {
	n.First = append(n.First, more.First[:min(len(more.First), max(0, 10-n.Count))]...)
	n.Count += more.Count
}

// Removal is the result of Remove.
type Removal struct {
	// Removed are the removed chains, named as in Leftover.Example, and the removed virtual servers, device and sets of the
	// mode ipvs.
	Removed Names
	// Kept are chains of kube-proxy that another program uses, and sets that a rule names.
	Kept Names
	// Draining is not zero while connections of the mode ipvs keep something. Then its rules stay too.
	Draining Draining
	// Ended counts the connections of the mode ipvs that ended with their virtual servers.
	Ended int
	// signs are the names in Removed that every kube-proxy of the mode makes.
	signs []string
}

// remove records that something is gone.
func (r *Removal) remove(name string, isSign bool) {
	r.Removed.add(name)
	if isSign {
		r.signs = append(r.signs, name)
	}
}

// removeChains records chains that are gone.
func (r *Removal) removeChains(t table, chains []string) {
	for _, c := range chains {
		r.remove(t.chain(c), isFixed(c))
	}
}

// keepChains records chains that stay.
func (r *Removal) keepChains(t table, chains []string) {
	for _, c := range chains {
		r.Kept.add(t.chain(c))
	}
}

// Remover removes leftovers. Its zero value waits for no connection.
type Remover struct {
	// DrainTimeout limits how long connections of the mode ipvs keep their virtual servers, counted from the Remove that
	// found them.
	DrainTimeout time.Duration
	// Excluded are addresses of virtual servers of other programs, as in kube-proxy's --ipvs-exclude-cidrs.
	Excluded []netip.Prefix

	// begun is the time since which drain waits for connections; zero while it does not.
	begun time.Time
	// signs are removed leftovers that a running kube-proxy would make again.
	signs map[Kind]map[string]bool
}

// maxSigns bounds the signs of a kind: there can be many virtual servers.
const maxSigns = 1000

// Remove removes the chains that kube-proxy's other modes made with iptables-nft and iptables-legacy, and the rules of
// base chains that lead to them. The rules of other programs, among them the kubelet's, stay, and so do the tables. In
// nf_tables it first removes the rules that lead from base chains to kube-proxy's, and then the chains, some at a time.
// In iptables-legacy it replaces each table at once. It begins with the virtual servers of the mode ipvs and kube-ipvs0,
// and ends with the sets. While connections of the mode ipvs keep some of it, Removal.Draining says so, and another
// Remove goes on. An interrupted removal is completed by the next one.
func (r *Remover) Remove(ctx context.Context) (Removal, error) {
	found, err := list(ctx)
	removal, failure := r.remove(ctx, found)
	return removal, errors.Join(err, failure)
}

// remove removes what was found.
func (r *Remover) remove(ctx context.Context, found []Leftover) (removal Removal, err error) {
	removal, err = r.drain(ctx)
	r.record(IPVS, removal.signs)
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
		removal.Removed.append(more.Removed)
		removal.Kept.append(more.Kept)
		r.record(kind, more.signs)
	}
	keepShared := len(MarkChainUsers(cniDir)) > 0
	for _, place := range places {
		for _, l := range found {
			if l.Kind == place.kind {
				more, err := place.remove(ctx, l.tables, keepShared)
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

// record records signs that are gone.
func (r *Remover) record(kind Kind, signs []string) {
	if r.signs == nil {
		r.signs = map[Kind]map[string]bool{NFT: {}, Legacy: {}, IPVS: {}}
	}
	for _, name := range signs {
		if len(r.signs[kind]) < maxSigns {
			r.signs[kind][name] = true
		}
	}
}

// back returns the name of a leftover that this Remover had removed and that is there again, because a running kube-proxy has
// made it; empty for none.
func (r *Remover) back(found []Leftover) string {
	for _, l := range found {
		for _, name := range l.signs {
			if r.signs[l.Kind][name] {
				return name
			}
		}
	}
	if len(r.signs[IPVS]) == 0 {
		return ""
	}
	own, _ := r.ownVirtualServers() // Remove reports the failure
	i := slices.IndexFunc(own, func(v virtualServer) bool { return r.signs[IPVS][v.String()] })
	if i < 0 {
		return ""
	}
	return own[i].String()
}
