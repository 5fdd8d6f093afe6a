// Package evaluator walks packets through nftables rulesets in memory and returns their fates.
//
// Tests use it to check rulesets without a kernel, and tools to explain where a packet went and why. For one packet it
// returns every possible [Fate], because a rule may draw a random number. Each fate has its [Path]: the hooks, chains
// and rules that led there, and the elements that the rules found.
//
// The package uses the ruleset types of nft, and knows nothing of Services. The caller supplies the state that is not
// in the rules: the machine's own addresses and, for rules that need them, the outgoing interfaces ([Host]); and the
// elements that earlier packets added to dynamic maps ([Added]).
//
// It follows the kernel, also where nft's manual is silent:
//
//   - A packet that arrives runs through prerouting. If its destination is local then, it runs through input, else
//     through forward and postrouting. A packet that a process sends runs through output and postrouting. If its
//     destination is local then, it comes back in by lo, through prerouting and input.
//   - NAT chains see the first packet of a connection only: once for its destination (prerouting or output) and once
//     for its source (postrouting or input). They run at dstnat or srcnat, whatever their own priority.
//   - accept ends the base chain, but not the hook. drop and reject end everything.
//   - A device calls its chains of family netdev when a packet comes in, and when it leaves. A bridge calls those of
//     family bridge: for a packet that it hands up (prerouting, input) or that leaves by it (output, postrouting). With
//     br_netfilter, prerouting of IP runs at the port, before input of the bridge. A packet that leaves by the bridge that
//     it came in by is forwarded by the bridge, if a rule has changed its destination. Otherwise the bridge or the node
//     forwards it: the Ethernet address to which it was sent decides, which is not known.
//   - Behind prerouting the kernel routes a packet, if the interface that it came in by forwards, there is a route, and
//     rp_filter agrees with the way back to the source ([RoutingFailure]). Where [Host] does not tell, all three are assumed;
//     Host.Ask asks the kernel itself.
//   - In output, oifname is the interface towards the destination before translation.
//
// Tables of other programs (nft.Conn.ReadOthers) run beside, with values of which bits may be unknown. Where an unknown
// value makes a difference, there is a fate for each way, and Depends names the rules. A rule that is not modelled ends
// the walk as Undecided: no definite fate follows a rule that is not known. The first packet of a connection has ct state
// new and mark 0. If the caller does not name the incoming interface, it is that of the route to the source.
//
// It does not guess. If a packet meets a statement, field or verdict in the other tables that the package does not
// model, or a field whose value the caller did not supply, the result is an error that names it. Not modelled are reply
// packets and fragments.
//
// Tests in the package integration compare it with a real kernel, on random rulesets and packets.
package evaluator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// Limits: each draw of a number multiplies the paths, and chains may jump to one another many times.
const (
	maxStatements    = 1 << 20 // of one path: a chain of iptables may have 100,000 rules
	maxAllStatements = 1 << 25 // of all paths of one packet
)

// maxPaths is smaller in tests.
var maxPaths = 1 << 16

// Evaluator walks packets through tables. It is safe for concurrent use as long as nobody changes the tables.
type Evaluator struct {
	host Host
	// hooks holds the base chains by family and hook, in the order in which they run.
	hooks map[hookKey][]baseChain
	// ports are those of each bridge.
	ports map[string][]string
	// routes are the routing tables, by number.
	routes map[uint32]*routingTable
}

type hookKey struct {
	family nft.Family
	hook   nft.Hook
}

type baseChain struct {
	*nft.Table
	chain *nft.Chain
	// made is the position of the chain among those of the tables that New got.
	made int
	// maybe says that it is not known whether the packet comes to the chain.
	maybe bool
}

func (c baseChain) isOther() bool { return c.Kernel != nil && c.Kernel.Other }

// New returns an evaluator of the tables on a host. All other tables of the kernel are assumed to accept every packet
// and to change nothing. Tables of other programs (nft.Conn.ReadOthers) must be in the order in which they were made.
// The tables must not be modified while the evaluator is in use.
func New(tables []*nft.Table, host Host) *Evaluator {
	e := &Evaluator{host: host, hooks: map[hookKey][]baseChain{}, ports: map[string][]string{}, routes: routingTables(host.Routes)}
	for port, bridge := range host.Bridges {
		e.ports[bridge] = append(e.ports[bridge], port)
	}
	made := 0
	for _, t := range tables {
		if t.Dormant {
			continue
		}
		for _, c := range t.Chains {
			if made++; c.Hook == "" {
				continue
			}
			families := []nft.Family{t.Family}
			switch {
			case c.Hook == nft.HookIngress:
				families[0] = nft.FamilyNetdev
			case t.Family == nft.FamilyInet:
				families = nft.Families[:]
			}
			for _, family := range families {
				key := hookKey{family, c.Hook}
				e.hooks[key] = append(e.hooks[key], baseChain{Table: t, chain: c, made: made})
			}
		}
	}
	for _, chains := range e.hooks {
		slices.SortStableFunc(chains, func(a, b baseChain) int {
			return cmp.Or(compareBaseChains(a, b), cmp.Compare(b.made, a.made))
		})
	}
	return e
}

// baseChains returns the chains of a hook in the order in which they run.
func (e *Evaluator) baseChains(family nft.Family, hook nft.Hook) ([]baseChain, error) {
	chains := e.hooks[hookKey{family, hook}]
	for i := 1; i < len(chains); i++ {
		if a, b := chains[i-1], chains[i]; compareBaseChains(a, b) == 0 && !a.isOther() && !b.isOther() {
			return nil, fmt.Errorf("%s %s %s: chain %s of table %s has the same hook and priority; which one runs first is not known",
				b.Family, b.Name, b.chain.Name, a.chain.Name, a.Name)
		}
	}
	return chains, nil
}

// compareBaseChains orders the chains of a hook as they run. 0 means that the ruleset does not tell. The priority of a
// NAT chain orders it among NAT chains only.
func compareBaseChains(a, b baseChain) int {
	c := cmp.Compare(runsAt(a.chain), runsAt(b.chain))
	if c == 0 && a.chain.Type == nft.TypeNAT && b.chain.Type == nft.TypeNAT {
		return cmp.Compare(a.chain.Priority, b.chain.Priority)
	}
	return c
}

// runsAt returns the priority at which the kernel runs a chain: all NAT chains of a hook run from one place, at a
// priority that does not depend on theirs (nf_nat_ipv4_ops in net/netfilter/nf_nat_proto.c).
func runsAt(c *nft.Chain) int32 {
	if c.Type == nft.TypeNAT {
		return natPriority(c.Hook)
	}
	return c.Priority
}

func natPriority(hook nft.Hook) int32 {
	if translates(hook) == destination {
		return nft.PriorityDstNAT
	}
	return nft.PrioritySrcNAT
}

// Fates returns the possible fates of a packet, one for each path through the rules, in the order of the numbers drawn.
// There is more than one only if rules draw random numbers. added holds the elements that earlier packets added to
// dynamic maps, besides those in the tables. An error names the statement or field that the evaluator does not model,
// or the missing value, or says that there are too many paths (65,536) or statements to follow.
func (e *Evaluator) Fates(p Packet, added ...Added) (Fates, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	var fates Fates
	d := &draws{}
	statements := 0
	seen := &others{found: map[lookedUp]answer{}, matters: map[arrival]bool{}}
	for {
		w := newWalk(e, p, added, d)
		w.others = seen
		if err := w.run(); err != nil {
			return nil, fmt.Errorf("evaluator: %w", err)
		}
		fates = append(fates, w.fate)
		if !d.next() {
			return fates, nil
		}
		if statements += w.statements; len(fates) == maxPaths || statements > maxAllStatements {
			return nil, errors.New("evaluator: the rules draw numbers in more ways than can be followed")
		}
	}
}

// draws are the numbers that rules draw on one walk. next goes through all combinations.
type draws struct {
	numbers, moduli []uint32
	// used counts the numbers that the current walk has drawn.
	used int
}

// draw returns a number from 0 to modulus-1.
func (d *draws) draw(modulus uint32) uint32 {
	if d.used == len(d.numbers) {
		d.numbers, d.moduli = append(d.numbers, 0), append(d.moduli, modulus)
	}
	d.used++
	return d.numbers[d.used-1]
}

// next prepares a walk that draws other numbers than all before. It reports whether there is one.
func (d *draws) next() bool {
	for d.used = 0; len(d.numbers) > 0; {
		last := len(d.numbers) - 1
		if d.numbers[last]++; d.numbers[last] < d.moduli[last] {
			return true
		}
		d.numbers, d.moduli = d.numbers[:last], d.moduli[:last]
	}
	return false
}
