package evaluator

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

const (
	// maxBranches bounds the ways through one base chain of another program that are followed.
	maxBranches = 256
	// maxOrders bounds how many tables with chains of equal priority are each tried first.
	maxOrders = 256
)

// others keeps what the walks of one packet have in common: the elements that the kernel found.
type others struct {
	found map[lookedUp]answer
	// matters says where it makes a difference which of several ways the packet takes: the order of chains with one priority,
	// or whether a bridge or the node forwards it.
	matters map[arrival]bool
	// spent counts the statements and chains of all walks, including the walks that only compare ways.
	spent int
}

// spend reports whether the walks take longer than they may.
func (o *others) spend(statements int) bool {
	o.spent += statements
	return o.spent > maxAllStatements
}

// arrival is a packet in front of a choice: before the chains of one priority, whose first chain is first, or behind
// prerouting at a port of a bridge, where first is nil. The hook and the interfaces are part of it, because devices may share
// chains, and a packet may come by several devices.
type arrival struct {
	first    *nft.Chain
	hook     nft.Hook
	iif, oif ifname
	state
}

// state holds the parts of a packet and of its connection that rules change, with the changes of sets.
type state struct {
	source, destination netip.AddrPort
	mark, ctMark        mark
	routingMark         mark
	hops                uint8
	untracked           bool
	translated, changed [2]bool
	copyTo              netip.Addr
	changes             string
}

func (w *walk) state() state {
	s := state{w.source, w.destination, w.mark, w.ctMark, w.routingMark, w.hops, w.untracked, w.translated, w.changed, w.fate.CopyTo, ""}
	if len(w.changes) > 0 {
		s.changes = fmt.Sprint(w.changes)
	}
	return s
}

// otherChain runs a base chain of another program. If a rule asks for something unknown, otherChain runs the chain once for
// each answer. Answers after which the packet and the verdict are the same count as one: the fate does not depend on these answers.
func (w *walk) otherChain(c baseChain) (nft.Verdict, error) {
	before := *w
	before.fate.Path, before.fate.Depends = slices.Clip(before.fate.Path), slices.Clip(before.fate.Depends)
	type end struct {
		walk    walk
		verdict nft.Verdict
	}
	var ends []end
	answers := &draws{}
	for more, n := true, 0; more; n++ {
		*w = before
		w.draws = answers
		at := place{Table: c.Table, base: c.chain, chain: c.chain}
		v, err := w.meet(c, at)
		if more = answers.next(); n == maxBranches && more {
			err, more = fmt.Errorf("it has more than %d ways for the packet", maxBranches), false
		}
		if err != nil {
			w.undecided(at, nil, err.Error())
			v = nft.Drop
		}
		known := slices.ContainsFunc(ends, func(e end) bool {
			return e.verdict.Kind == v.Kind && e.walk.fate.Result == w.fate.Result && e.walk.state() == w.state()
		})
		if !known {
			ends = append(ends, end{*w, v})
		}
	}
	chosen := 0
	if len(ends) > 1 {
		chosen = int(before.draws.draw(uint32(len(ends))))
	}
	*w = ends[chosen].walk
	w.draws = before.draws
	if len(ends) == 1 {
		w.fate.Depends = before.fate.Depends
	}
	return ends[chosen].verdict, nil
}

// meet runs a base chain of another program, if the packet comes to it.
func (w *walk) meet(c baseChain, at place) (nft.Verdict, error) {
	if !c.maybe {
		return w.runBaseChain(at)
	}
	comes := w.draws.draw(2) == 1
	verdict := "if the packet does not come by its devices"
	if comes {
		verdict = "if the packet comes by one of its devices"
	}
	w.dependsOn(w.newStep(StepDevices, at, nil, verdict))
	if comes {
		return w.runBaseChain(at)
	}
	return nft.Accept, nil
}

// runTogether runs chains of equal priority. The newest chain runs first (nf_hook_entries_grow). The kernel lists the chains
// of a table in the order in which they were added, but does not say which of two tables got its chain later. If the order
// makes a difference, each table runs first once, beginning with the newest table.
func (w *walk) runTogether(chains []baseChain) (bool, error) {
	var orders [][]baseChain
	var ways []func() (bool, error)
	for i, c := range chains {
		if i == 0 || c.Table != chains[i-1].Table {
			isFirst := func(o baseChain) bool { return o.Table == c.Table }
			first := slices.DeleteFunc(slices.Clone(chains), func(o baseChain) bool { return !isFirst(o) })
			if len(orders) == maxOrders {
				return false, fmt.Errorf("more than %d tables have chains of the hook %s with priority %d", maxOrders, w.hook, runsAt(c.chain))
			}
			order := append(first, slices.DeleteFunc(slices.Clone(chains), isFirst)...)
			orders = append(orders, order)
			ways = append(ways, func() (bool, error) { return w.runChains(order) })
		}
	}
	if len(orders) == 1 {
		return w.runChains(chains)
	}
	if passed, err := w.passes(chains); passed || err != nil {
		return passed, err
	}
	chosen, matters, err := w.choose(chains[0].chain, ways)
	switch {
	case err != nil:
		return false, err
	case !matters:
		return w.runChains(chains)
	}
	first := orders[chosen][0]
	w.dependsOn(w.newStep(StepOrder, place{Table: first.Table, chain: first.chain}, nil, "if it runs before other tables' chains of its priority"))
	return ways[chosen]()
}

// passes runs the chains, and reports whether each let the packet pass without changing it, and no answer was unknown. Then each
// chain sees the same packet in any order. Otherwise it leaves the walk as it was.
func (w *walk) passes(chains []baseChain) (bool, error) {
	before := *w
	before.fate.Path, before.fate.Depends = slices.Clip(before.fate.Path), slices.Clip(before.fate.Depends)
	*w = before
	w.draws = &draws{}
	for i := range chains {
		on, err := w.runChains(chains[i : i+1])
		if err != nil {
			return false, err
		}
		if !on || w.draws.used > 0 || len(w.fate.Depends) > len(before.fate.Depends) || w.state() != before.state() {
			*w = before
			return false, nil
		}
	}
	w.draws = before.draws
	return true, nil
}

// choose draws one of the ways that a packet may take from here, if they make a difference. Otherwise it chooses the first.
func (w *walk) choose(first *nft.Chain, ways []func() (bool, error)) (chosen int, matters bool, err error) {
	at := arrival{first, w.hook, w.iif, w.oif, w.state()}
	matters, known := w.others.matters[at]
	if !known {
		if matters, err = w.differ(ways); err != nil {
			return 0, false, err
		}
		w.others.matters[at] = matters
	}
	if matters {
		chosen = int(w.draws.draw(uint32(len(ways))))
	}
	return chosen, matters, nil
}

// differ reports whether the ways make a difference to the packet. It ends where Fates gives up.
func (w *walk) differ(ways []func() (bool, error)) (matters bool, err error) {
	before := *w
	defer func() { *w = before }()
	before.fate.Path, before.fate.Depends = slices.Clip(before.fate.Path), slices.Clip(before.fate.Depends)
	type end struct {
		state
		on      bool
		result  Result
		decided *nft.Chain
	}
	var first map[end]bool
	for _, way := range ways {
		ends, answers := map[end]bool{}, &draws{}
		statements := 0
		for paths := 0; paths == 0 || paths < maxPaths && statements <= maxAllStatements && answers.next(); paths++ {
			*w = before
			w.draws = answers
			on, err := way()
			if err != nil {
				return false, err
			}
			statements += w.statements - before.statements
			e := end{state: w.state(), on: on, result: w.fate.Result}
			if !on {
				e.state, e.decided = state{}, w.fate.Path[len(w.fate.Path)-1].Chain
			}
			ends[e] = true
		}
		if first == nil {
			first = ends
		}
		matters = matters || !maps.Equal(first, ends)
	}
	return matters, nil
}

// undecided ends the walk at a rule whose result is not known.
func (w *walk) undecided(at place, r *nft.Rule, why string) {
	w.fate.Result = Undecided
	w.add(w.newStep(StepUnknown, at, r, why))
	w.fate.Depends = append(w.fate.Depends, w.fate.Path[len(w.fate.Path)-1])
}
