package integration

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/random"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// Not only the compiler's rules: chains of all hooks, types and priorities that jump to each other,
// with every statement that the evaluator models.
func testEvaluatorAgreesWithTheKernelOnAnyRules(t *testing.T) {
	b := newBench(t)
	rapid.Check(t, func(rt *rapid.T) {
		d := newGenerator(rt)
		var tables []*nft.Table
		for _, p := range random.Places {
			tables = append(tables, (&ruleGenerator{generator: d, at: p}).table())
		}
		var list []flows.Flow
		for range flowsPerRuleset {
			p := random.One(d.Choose, random.Places)
			list = append(list, flows.Flow{
				From: random.One(d.Choose, p.Senders), Protocol: flows.Protocol(random.One(d.Choose, random.Protocols).String()),
				To: netip.AddrPortFrom(random.One(d.Choose, p.Endpoints), random.One(d.Choose, random.EndpointPorts)),
			})
		}
		c := b.load(rt, tables)
		if err := c.compare(list); err != nil {
			rt.Fatalf("%s\n%v", flows.PrintTables(tables), err)
		}
		if err := c.checkAdded(tables); err == nil {
			return
		}
		// A packet that is sent again, because the machine is slow, finds its translation decided and leaves
		// other traces. That does not happen twice.
		c = b.load(rt, tables)
		if err := errors.Join(c.compare(list), c.checkAdded(tables)); err != nil {
			rt.Fatalf("%s\n%v", flows.PrintTables(tables), err)
		}
	})
	b.tally.expectAll(t)
}

// ruleGenerator draws the rules of one base chain after the other.
type ruleGenerator struct {
	generator
	at   *random.Place
	base *nft.Chain
	// regular is the chains that base leads to; each leads to later ones only.
	regular []*nft.Chain
	// from is the first of them that the chain under way may lead to.
	from     int
	verdicts *nft.Set
	// trace is a map to which rules add an element for each packet, with the header and the mark that it had there.
	trace *nft.Set
}

func (d *ruleGenerator) nft() nft.Family {
	if d.at.Unassigned.Is4() {
		return nft.FamilyIP
	}
	return nft.FamilyIP6
}

// Sets that all chains share.
const (
	setPairs   = "pairs"
	setSources = "sources"
	mapTargets = "targets"
)

func (d *ruleGenerator) table() *nft.Table {
	f := d.nft()
	t := &nft.Table{Family: f, Name: "kube-proxy", Sets: []*nft.Set{d.pairs(), d.ranges(), d.targets()}}
	for _, hook := range []nft.Hook{nft.HookPrerouting, nft.HookInput, nft.HookForward, nft.HookOutput, nft.HookPostrouting} {
		// Chains of one priority run in the order in which they were added, which no ruleset tells.
		for i, priority := range random.Some(d.Choose, []int32{-150, -110, -99, -1, 0, 1, 99, 101, 300}, 3, cmp.Compare) {
			d.base = &nft.Chain{Name: fmt.Sprintf("%s-%d", hook, i), Hook: hook, Type: nft.TypeFilter, Priority: priority, DropPolicy: d.Maybe(12)}
			if hook != nft.HookForward && d.Maybe(2) {
				d.base.Type = nft.TypeNAT
			}
			t.Chains = append(t.Chains, d.chains()...)
			t.Sets = append(t.Sets, d.verdicts, d.trace)
		}
	}
	nft.SortChains(t.Chains)
	return t
}

func (d *ruleGenerator) pairs() *nft.Set {
	s := &nft.Set{Name: setPairs, Key: nft.Concat{d.nft().Saddr(), d.nft().Daddr()}}
	for range 6 {
		s.Put(nft.Element{Key: nft.AddrData(random.One(d.Choose, d.at.Endpoints)) + nft.AddrData(random.One(d.Choose, d.at.Endpoints))})
	}
	return s
}

// ranges holds ranges of sources for a protocol, which do not overlap.
func (d *ruleGenerator) ranges() *nft.Set {
	s := &nft.Set{Name: setSources, Key: nft.Concat{nft.MetaL4proto, d.nft().Saddr()}, Interval: true}
	ends := slices.SortedFunc(slices.Values(d.at.Endpoints), netip.Addr.Compare)
	for i := 0; i+1 < len(ends); i += 2 {
		for _, protocol := range random.Protocols {
			if d.Maybe(2) {
				key := nft.ProtoData(uint8(protocol))
				s.Put(nft.Element{Key: key + nft.AddrData(ends[i]), KeyEnd: key + nft.AddrData(ends[i+1])})
			}
		}
	}
	return s
}

// targets has some slots of some destinations.
func (d *ruleGenerator) targets() *nft.Set {
	s := &nft.Set{
		Name: mapTargets, Key: nft.Concat{d.nft().Daddr(), nft.Numgen{Mod: 2}},
		Data: nft.Concat{d.nft().Daddr(), nft.ThDport},
	}
	for range 12 {
		key := nft.AddrData(random.One(d.Choose, d.at.Endpoints)) + nft.IntegerData(uint32(rapid.IntRange(0, 2).Draw(d.T, "slot")))
		s.Put(nft.Element{Key: key, Value: nft.AddrData(random.One(d.Choose, d.at.Endpoints)) + nft.PortData(random.One(d.Choose, random.EndpointPorts))})
	}
	return s
}

// chains draws a base chain, and the chains and maps that only it leads to, since what a chain
// may do depends on the base chain.
func (d *ruleGenerator) chains() []*nft.Chain {
	d.regular = nil
	for i := range rapid.IntRange(0, 4).Draw(d.T, "regular") {
		d.regular = append(d.regular, &nft.Chain{Name: fmt.Sprintf("%s-to-%d", d.base.Name, i)})
	}
	d.verdicts, d.trace = d.verdictMap(), d.traceMap()
	// Answers, errors and messages that hosts send by themselves (MLD) pass, so that a test
	// observes the fate of the first packets alone.
	const invalidEstablishedRelated = 1 | 2 | 4
	d.base.Rules = []nft.Rule{
		nft.NewRule(nft.Match{Field: nft.CTState, Value: invalidEstablishedRelated}, nft.Accept),
		nft.NewRule(nft.Match{Field: nft.MetaL4proto, Value: nft.ProtoData(unix.IPPROTO_ICMPV6)}, nft.Accept),
		nft.NewRule(d.leaveTrace()),
	}
	d.from = 0
	d.base.Rules = append(d.base.Rules, d.rules()...)
	for i, c := range d.regular {
		d.from = i + 1
		c.Rules = d.rules()
	}
	return append([]*nft.Chain{d.base}, d.regular...)
}

// traceMap is as wide as the kernel allows, 64 bytes.
func (d *ruleGenerator) traceMap() *nft.Set {
	f := d.nft()
	link := random.One(d.Choose, []nft.Expr{nft.MetaIifname, nft.MetaOifname})
	return &nft.Set{
		Name: d.base.Name + "-trace", Dynamic: true,
		Key:  nft.Concat{f.Saddr(), f.Daddr(), nft.MetaL4proto, nft.ThDport, nft.MetaMark, link},
		Data: nft.Concat{nft.MetaMark},
	}
}

func (d *ruleGenerator) leaveTrace() nft.Statement {
	return nft.Update{Map: d.trace.Name, Key: d.trace.Key, Data: d.trace.Data, Timeout: affinityTimeout}
}

// verdictMap leads nowhere but to the last regular chain, so that all others may use it.
func (d *ruleGenerator) verdictMap() *nft.Set {
	s := &nft.Set{Name: d.base.Name + "-verdicts", Key: nft.Concat{d.nft().Daddr(), nft.MetaL4proto, nft.ThDport}, Verdicts: true}
	verdicts := []nft.Verdict{nft.Accept, nft.Return, nft.Drop}
	if n := len(d.regular); n > 0 {
		last := d.regular[n-1].Name
		verdicts = append(verdicts, nft.Jump(last), nft.Goto(last))
	}
	for range 6 {
		key := nft.AddrData(random.One(d.Choose, d.at.Endpoints)) + nft.ProtoData(uint8(random.One(d.Choose, random.Protocols))) + nft.PortData(random.One(d.Choose, random.EndpointPorts))
		s.Put(nft.Element{Key: key, Verdict: random.One(d.Choose, verdicts)})
	}
	return s
}

func (d *ruleGenerator) rules() []nft.Rule {
	var out []nft.Rule
	for range rapid.IntRange(0, 4).Draw(d.T, "rules") {
		var statements []nft.Statement
		for range rapid.IntRange(0, 2).Draw(d.T, "matches") {
			statements = append(statements, d.match())
		}
		if d.Maybe(3) {
			statements = append(statements, random.One(d.Choose, []nft.Statement{
				nft.SetMark(1), nft.SetMark(6), nft.FlipMark(3), nft.Counter{}, d.leaveTrace(),
			}))
		}
		if action := d.action(); action != nil {
			statements = append(statements, action)
		}
		if len(statements) > 0 {
			out = append(out, nft.NewRule(statements...))
		}
	}
	return out
}

func (d *ruleGenerator) match() nft.Statement {
	f := d.nft()
	op := random.One(d.Choose, []nft.Op{nft.Equal, nft.NotEqual})
	address := random.One(d.Choose, []nft.Field{f.Saddr(), f.Daddr()})
	endpoint := random.One(d.Choose, d.at.Endpoints)
	return random.One(d.Choose, []nft.Statement{
		nft.Match{Field: address, Op: op, Value: random.One(d.Choose, d.at.Sources)},
		nft.Match{Field: address, Op: op, Value: netip.PrefixFrom(endpoint, endpoint.BitLen()-2)},
		nft.Match{Field: nft.MetaL4proto, Op: op, Value: nft.ProtoData(uint8(random.One(d.Choose, random.Protocols)))},
		nft.Match{Field: nft.ThDport, Op: op, Value: nft.PortData(random.One(d.Choose, random.EndpointPorts))},
		nft.Match{Field: nft.MetaMark, Op: op, Value: nft.IntegerData(uint32(rapid.IntRange(0, 7).Draw(d.T, "mark")))},
		nft.Match{Field: random.One(d.Choose, []nft.Field{nft.FibSaddrType, nft.FibDaddrType}), Op: op, Value: nft.IntegerData(unix.RTN_LOCAL)},
		nft.MatchMark(uint32(rapid.IntRange(1, 7).Draw(d.T, "bits")), uint32(rapid.IntRange(1, 7).Draw(d.T, "bits"))),
		nft.Match{Field: nft.CTState, Value: nft.CTStateNew},
		nft.Match{Field: nft.CTStatus, Value: nft.CTStatusDNAT},
		nft.Match{Field: nft.CTStatus, Value: 1 << 4},
		nft.Match{Field: random.One(d.Choose, []nft.Field{nft.MetaIifname, nft.MetaOifname}), Op: op, Value: random.One(d.Choose, []string{"lo", "eth0", "outside", "veth*"})},
		nft.InSet{Key: nft.Concat{f.Saddr(), f.Daddr()}, Op: op, Set: setPairs},
		nft.InSet{Key: nft.Concat{nft.MetaL4proto, f.Saddr()}, Op: op, Set: setSources},
	})
}

// action draws what the base chain's type and hook allow; nil for none.
func (d *ruleGenerator) action() nft.Statement {
	f := d.nft()
	actions := []nft.Statement{nil, nft.Accept, nft.Return}
	for _, c := range d.regular[d.from:] {
		actions = append(actions, nft.Jump(c.Name), nft.Goto(c.Name))
	}
	if d.from < len(d.regular) || d.base.Rules == nil {
		actions = append(actions, nft.Vmap{Key: d.verdicts.Key, Map: d.verdicts.Name})
	}
	if d.Maybe(3) {
		actions = append(actions, nft.Drop)
	}
	switch {
	case d.base.Type == nft.TypeFilter && d.base.Hook != nft.HookPostrouting && d.Maybe(2):
		actions = append(actions, nft.Reject{Family: f})
	case d.base.Type == nft.TypeNAT && (d.base.Hook == nft.HookPrerouting || d.base.Hook == nft.HookOutput):
		for mod := range uint32(3) {
			actions = append(actions, nft.DNAT(f, nft.Concat{f.Daddr(), nft.Numgen{Mod: mod + 1}}, mapTargets))
		}
	case d.base.Type == nft.TypeNAT && d.base.Hook == nft.HookPostrouting:
		actions = append(actions, nft.Masquerade, nft.Masquerade)
	}
	return random.One(d.Choose, actions)
}
