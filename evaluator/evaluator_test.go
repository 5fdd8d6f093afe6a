package evaluator

import (
	"math"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// The node of these tests, a client on it, one elsewhere, and an endpoint.
const (
	nodeAddr = "192.168.0.1"
	client   = "10.244.1.250"
	outside  = "198.51.100.7"
)

var host = Host{
	Addresses: []netip.Addr{netip.MustParseAddr(nodeAddr), netip.MustParseAddr("fd00:1::1")},
	Routes: []Route{
		{Destination: netip.MustParsePrefix("0.0.0.0/0"), Interface: "eth0"},
		{Destination: netip.MustParsePrefix("10.244.1.0/24"), Interface: "cni0", Source: netip.MustParseAddr("10.244.1.254")},
	},
}

// tcp returns a packet that comes in by eth0.
func tcp(from, to string) Packet {
	p := Packet{Destination: netip.MustParseAddrPort(to), Protocol: unix.IPPROTO_TCP, Interface: "eth0"}
	p.Source = netip.AddrPortFrom(netip.MustParseAddr(from), 0)
	return p
}

// fromNode returns a packet of a process on the node.
func fromNode(to string) Packet {
	p := tcp(nodeAddr, to)
	p.Local, p.Interface = true, ""
	return p
}

func base(name string, hook nft.Hook, priority int32, rules ...nft.Rule) *nft.Chain {
	return &nft.Chain{Name: name, Type: nft.TypeFilter, Hook: hook, Priority: priority, Rules: rules}
}

func nat(name string, hook nft.Hook, rules ...nft.Rule) *nft.Chain {
	priority := nft.PriorityDstNAT
	if hook == nft.HookPostrouting {
		priority = nft.PrioritySrcNAT
	}
	return &nft.Chain{Name: name, Type: nft.TypeNAT, Hook: hook, Priority: priority, Rules: rules}
}

func chain(name string, rules ...nft.Rule) *nft.Chain { return &nft.Chain{Name: name, Rules: rules} }

func withPolicyDrop(c *nft.Chain) *nft.Chain {
	c.DropPolicy = true
	return c
}

// rule is nft.NewRule.
func rule(statements ...nft.Statement) nft.Rule { return nft.NewRule(statements...) }

var (
	accept = nft.Accept
	back   = nft.Return
	reject = nft.Reject{Family: nft.FamilyIP}
)

// dport matches a port.
func dport(port uint16) nft.Statement {
	return nft.Match{Field: nft.ThDport, Value: nft.PortData(port)}
}

func setOf(name string, key nft.Concat, elements ...nft.Element) *nft.Set {
	s := &nft.Set{Name: name, Key: key}
	for _, e := range elements {
		s.Put(e)
	}
	return s
}

// targets is a map from a destination address and slot to an address and port.
var targetKey = nft.Concat{nft.IPDaddr, nft.Numgen{Mod: 2}}

func targets(from string, to ...string) *nft.Set {
	s := &nft.Set{Name: "targets", Key: targetKey, Data: nft.Concat{nft.IPDaddr, nft.ThDport}}
	for slot, text := range to {
		if text == "" {
			continue
		}
		target := netip.MustParseAddrPort(text)
		s.Put(nft.Element{
			Key:   nft.AddrData(netip.MustParseAddr(from)) + nft.IntegerData(uint32(slot)),
			Value: nft.AddrData(target.Addr()) + nft.PortData(target.Port()),
		})
	}
	return s
}

// dnat draws one of n slots of the targets.
func dnat(n uint32) nft.Rule {
	return rule(nft.DNAT(nft.FamilyIP, nft.Concat{nft.IPDaddr, nft.Numgen{Mod: n}}, "targets"))
}

// tableOf puts chains and sets in one table.
func tableOf(parts ...any) *nft.Table {
	t := &nft.Table{Family: nft.FamilyIP, Name: "test"}
	for _, part := range parts {
		switch part := part.(type) {
		case *nft.Chain:
			t.Chains = append(t.Chains, part)
		case *nft.Set:
			t.Sets = append(t.Sets, part)
		}
	}
	return t
}

// briefly prints fates without their paths, one a line.
func briefly(fates Fates) []string {
	var out []string
	for i := range fates {
		out = append(out, fates[i].String())
	}
	return out
}

func TestFates(t *testing.T) {
	const (
		untouched = "untouched, to 10.0.0.1:80"
		refused   = "refused: the sender gets an ICMP port unreachable"
		dropped   = "dropped"
	)
	packet := tcp(outside, "10.0.0.1:80")
	for _, tc := range []struct {
		name   string
		table  *nft.Table
		packet Packet
		want   []string
	}{
		{
			name:  "no rules leave it untouched",
			table: tableOf(),
			want:  []string{untouched},
		},
		{
			name:  "chains of other hooks do not see it",
			table: tableOf(base("a", nft.HookInput, 0, rule(nft.Drop)), base("b", nft.HookOutput, 0, rule(nft.Drop))),
			want:  []string{untouched},
		},
		{
			name:  "the policy decides when no rule does",
			table: tableOf(withPolicyDrop(base("a", nft.HookForward, 0, rule(dport(81), accept)))),
			want:  []string{dropped},
		},
		{
			name:  "a return from a base chain leaves it to the policy",
			table: tableOf(withPolicyDrop(base("a", nft.HookForward, 0, rule(back), rule(accept)))),
			want:  []string{dropped},
		},
		{
			name:  "accept ends the chain only, the next one may drop",
			table: tableOf(base("a", nft.HookForward, 0, rule(accept), rule(nft.Drop)), base("b", nft.HookForward, 1, rule(reject))),
			want:  []string{refused},
		},
		{
			name:  "base chains run in the order of their priorities",
			table: tableOf(base("a", nft.HookForward, 10, rule(nft.Drop)), base("b", nft.HookForward, -10, rule(reject))),
			want:  []string{refused},
		},
		{
			name:  "a jump comes back",
			table: tableOf(base("a", nft.HookForward, 0, rule(nft.Jump("b")), rule(nft.Drop)), chain("b", rule(back), rule(reject))),
			want:  []string{dropped},
		},
		{
			name:  "a goto does not",
			table: tableOf(base("a", nft.HookForward, 0, rule(nft.Goto("b")), rule(nft.Drop)), chain("b")),
			want:  []string{untouched},
		},
		{
			name: "what is gone to in a chain that was jumped to comes back to the jump",
			table: tableOf(base("a", nft.HookForward, 0, rule(nft.Jump("b")), rule(nft.Drop)),
				chain("b", rule(nft.Goto("c")), rule(reject)), chain("c")),
			want: []string{dropped},
		},
		{
			name: "a chain without the jump's verdict goes on with the next rule, not the next statement",
			table: tableOf(base("a", nft.HookForward, 0, rule(nft.Jump("b"), reject), rule(dport(80), nft.Drop)),
				chain("b")),
			want: []string{dropped},
		},
		{
			name: "a verdict map decides by its elements",
			table: tableOf(base("a", nft.HookForward, 0, rule(nft.Vmap{Key: nft.Concat{nft.ThDport}, Map: "ports"}), rule(nft.Drop)), chain("refuse", rule(reject)),
				verdictMap("ports", nft.Element{Key: nft.PortData(80), Verdict: nft.Goto("refuse")})),
			want: []string{refused},
		},
		{
			name: "a verdict map without the element goes on with the next rule",
			table: tableOf(base("a", nft.HookForward, 0, rule(nft.Vmap{Key: nft.Concat{nft.ThDport}, Map: "ports"}), rule(nft.Drop)),
				verdictMap("ports", nft.Element{Key: nft.PortData(81), Verdict: accept})),
			want: []string{dropped},
		},
		{
			name: "each draw is a fate, and a slot that is gone leads to the next rule",
			table: tableOf(nat("a", nft.HookPrerouting, dnat(3), dnat(1)),
				targets("10.0.0.1", "10.244.1.5:8080", "10.244.1.6:8080")),
			want: []string{"to 10.244.1.5:8080, source kept", "to 10.244.1.6:8080, source kept", "to 10.244.1.5:8080, source kept"},
		},
		{
			name: "a translated destination decides between input and forward",
			table: tableOf(nat("a", nft.HookPrerouting, dnat(2)), targets("10.0.0.1", nodeAddr+":80", "10.244.1.5:80"),
				base("in", nft.HookInput, 0, rule(reject)), base("forward", nft.HookForward, 0, rule(nft.Drop))),
			want: []string{refused, dropped},
		},
		{
			name: "NAT chains run at dstnat, whatever their priority",
			table: tableOf(&nft.Chain{Name: "a", Type: nft.TypeNAT, Hook: nft.HookPrerouting, Priority: 300, Rules: []nft.Rule{dnat(1)}},
				targets("10.0.0.1", "10.244.1.5:8080"), base("b", nft.HookPrerouting, -99, rule(dport(8080), nft.Drop))),
			want: []string{dropped},
		},
		{
			name: "the first NAT chain that translates is the last",
			table: tableOf(nat("a", nft.HookPrerouting, dnat(1)), targets("10.0.0.1", "10.244.1.5:8080"),
				&nft.Chain{Name: "b", Type: nft.TypeNAT, Hook: nft.HookPrerouting, Priority: 0, Rules: []nft.Rule{rule(nft.Drop)}}),
			want: []string{"to 10.244.1.5:8080, source kept"},
		},
		{
			name: "a translation to what the packet says is none",
			table: tableOf(nat("a", nft.HookPrerouting, dnat(1)), targets("10.0.0.1", "10.0.0.1:80"),
				base("b", nft.HookForward, 0, rule(nft.Match{Field: nft.CTStatus, Value: nft.CTStatusDNAT}, nft.Drop))),
			want: []string{untouched},
		},
		{
			name: "a mark goes along, and masquerading follows it",
			table: tableOf(base("a", nft.HookPrerouting, 0, rule(nft.SetMark(6))),
				nat("b", nft.HookPostrouting, rule(nft.MatchMark(2, 2), nft.FlipMark(2), nft.Masquerade))),
			want: []string{"to 10.0.0.1:80, source masqueraded"},
		},
		{
			name: "a mark matches when it has all the bits",
			table: tableOf(base("a", nft.HookPrerouting, 0, rule(nft.SetMark(6))),
				base("b", nft.HookForward, 0, rule(nft.MatchMark(3, 3), nft.Drop), rule(nft.MatchMark(6, 6), reject))),
			want: []string{refused},
		},
		{
			name:   "a packet of the node's own takes output and postrouting",
			packet: fromNode("10.0.0.1:80"),
			table: tableOf(base("a", nft.HookPrerouting, 0, rule(nft.Drop)), base("b", nft.HookForward, 0, rule(nft.Drop)),
				base("c", nft.HookPostrouting, 0, rule(nft.Match{Field: nft.MetaOifname, Op: nft.NotEqual, Value: "eth*"}, nft.Drop))),
			want: []string{untouched},
		},
		{
			name:   "a packet to the node itself comes back in by lo, still new, and is not translated again",
			packet: fromNode("10.0.0.1:80"),
			table: tableOf(nat("a", nft.HookOutput, dnat(1)), nat("b", nft.HookPrerouting, rule(nft.Drop)), targets("10.0.0.1", nodeAddr+":8080"),
				base("c", nft.HookInput, 0, rule(nft.Match{Field: nft.MetaIifname, Value: "lo"}, nft.Match{Field: nft.CTState, Value: nft.CTStateNew}, reject))),
			want: []string{refused},
		},
		{
			name:   "what was masqueraded comes from the node, to whatever address that was",
			packet: fromNode("10.0.0.1:80"),
			table: tableOf(nat("a", nft.HookOutput, dnat(1)), targets("10.0.0.1", "127.0.0.1:8080"), nat("b", nft.HookPostrouting, rule(nft.Masquerade)),
				base("c", nft.HookInput, 0, rule(nft.Match{Field: nft.FibSaddrType, Value: nft.IntegerData(unix.RTN_LOCAL)}, reject))),
			want: []string{refused},
		},
		{
			name:   "in output, oifname is the way that the packet was sent",
			packet: fromNode("10.0.0.1:80"),
			table: tableOf(nat("a", nft.HookOutput, dnat(1)), targets("10.0.0.1", "10.244.1.5:8080"),
				base("b", nft.HookOutput, 0, rule(nft.Match{Field: nft.MetaOifname, Value: "cni0"}, nft.Drop)),
				base("c", nft.HookPostrouting, 0, rule(nft.Match{Field: nft.MetaOifname, Value: "eth0"}, nft.Drop))),
			want: []string{"to 10.244.1.5:8080, source kept"},
		},
		{
			name: "a range includes both its ends, for its own other fields only",
			table: tableOf(base("a", nft.HookForward, 0, rule(nft.InSet{Key: nft.Concat{nft.ThDport, nft.IPSaddr}, Op: nft.NotEqual, Set: "ranges"}, nft.Drop), rule(reject)),
				ranges("ranges", 80, "198.51.100.1", "198.51.100.7")),
			want: []string{refused},
		},
		{
			name: "an address beyond all ranges is in none",
			table: tableOf(base("a", nft.HookForward, 0, rule(nft.InSet{Key: nft.Concat{nft.ThDport, nft.IPSaddr}, Set: "ranges"}, nft.Drop), rule(reject)),
				ranges("ranges", 80, "198.51.100.1", "198.51.100.6")),
			want: []string{refused},
		},
		{
			name: "before connection tracking, ct state is invalid",
			table: tableOf(base("a", nft.HookPrerouting, -300, rule(nft.Match{Field: nft.CTState, Value: nft.CTStateNew}, nft.Drop),
				rule(nft.Match{Field: nft.CTState, Value: nft.CTStateInvalid}, nft.SetMark(1))),
				base("b", nft.HookForward, 0, rule(nft.Match{Field: nft.MetaMark, Value: nft.IntegerData(1)}, reject))),
			want: []string{refused},
		},
		{
			name:   "a dormant table does nothing",
			table:  &nft.Table{Family: nft.FamilyIP, Name: "test", Dormant: true, Chains: []*nft.Chain{base("a", nft.HookForward, 0, rule(nft.Drop))}},
			packet: packet,
			want:   []string{untouched},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.packet.Protocol == 0 {
				tc.packet = packet
			}
			fates, err := New([]*nft.Table{tc.table}, host).Fates(tc.packet)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, briefly(fates)); diff != "" {
				t.Errorf("fates (-want +got):\n%s\n%s", diff, fates)
			}
		})
	}
}

func verdictMap(name string, elements ...nft.Element) *nft.Set {
	s := setOf(name, nft.Concat{nft.ThDport}, elements...)
	s.Verdicts = true
	return s
}

func ranges(name string, port uint16, from, to string) *nft.Set {
	s := setOf(name, nft.Concat{nft.ThDport, nft.IPSaddr})
	s.Interval = true
	s.Put(nft.Element{
		Key:    nft.PortData(port) + nft.AddrData(netip.MustParseAddr(from)),
		KeyEnd: nft.PortData(port) + nft.AddrData(netip.MustParseAddr(to)),
	})
	return s
}

// A table may have thousands of ranges, and a packet thousands of paths, each of which looks them up.
func TestFatesAmongManyRanges(t *testing.T) {
	set := ranges("ranges", 80, "198.51.100.7", "198.51.100.7")
	for i := range 10_000 {
		addr := nft.AddrData(netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}))
		set.Put(nft.Element{Key: nft.PortData(80) + addr, KeyEnd: nft.PortData(80) + addr})
	}
	e := New([]*nft.Table{tableOf(set, base("a", nft.HookPrerouting, 0, rule(nft.InSet{Key: set.Key, Set: "ranges"}, nft.Drop)))}, host)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fates, err := e.Fates(tcp("198.51.100.7", "10.0.0.1:80"))
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"dropped"}, briefly(fates)); diff != "" {
		t.Errorf("fates (-want +got):\n%s", diff)
	}
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 100<<10 {
		t.Errorf("one lookup takes %d KiB: it copies the ranges", bytes>>10)
	}
}

func TestFatesEstablished(t *testing.T) {
	e := New([]*nft.Table{tableOf(
		nat("a", nft.HookPrerouting, dnat(1)), targets("10.0.0.1", "10.244.1.5:8080"),
		base("b", nft.HookForward, 0, rule(nft.Match{Field: nft.CTState, Value: nft.CTStateNew}, nft.Drop)),
		nat("c", nft.HookPostrouting, rule(nft.Drop)),
		// conntrack knows from the start what NAT does later.
		base("d", nft.HookPrerouting, -150, rule(nft.Match{Field: nft.CTStatus, Value: nft.CTStatusDNAT}, nft.SetMark(1)),
			rule(nft.Match{Field: nft.CTReplyProtoSrc, Op: nft.NotEqual, Value: nft.PortData(8080)}, nft.SetMark(2))),
	)}, host)
	p := tcp(outside, "10.0.0.1:80")
	for _, tc := range []struct {
		name       string
		connection *Connection
		want       string
		mark       uint32
	}{
		{"the first packet is new", nil, "dropped", 2},
		{"one that was translated elsewhere", &Connection{Destination: netip.MustParseAddrPort("10.244.1.6:8080")}, "to 10.244.1.6:8080, source kept", 1},
		{"one that was masqueraded too", &Connection{Destination: netip.MustParseAddrPort("10.244.1.6:8080"), Masqueraded: true}, "to 10.244.1.6:8080, source masqueraded", 1},
		{"one that was not translated", &Connection{}, "untouched, to 10.0.0.1:80", 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p.Connection = tc.connection
			fates, err := e.Fates(p)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{tc.want}, briefly(fates)); diff != "" {
				t.Errorf("fates (-want +got):\n%s", diff)
			}
			if fates[0].Mark != tc.mark {
				t.Errorf("mark %d, want %d", fates[0].Mark, tc.mark)
			}
		})
	}
}

// affinityTable is a table that holds clients to the endpoint that they drew first.
func affinityTable(size uint32) *nft.Table {
	memory := &nft.Set{
		Name: "memory", Dynamic: true, Size: size,
		Key: nft.Concat{nft.IPSaddr, nft.IPDaddr}, Data: nft.Concat{nft.IPDaddr, nft.ThDport},
	}
	return tableOf(memory, targets("10.0.0.1", "10.244.1.5:8080", "10.244.1.6:8080"),
		nat("a", nft.HookPrerouting, rule(nft.DNAT(nft.FamilyIP, memory.Key, "memory")), dnat(2)),
		base("b", nft.HookForward, 0, rule(nft.Update{
			Map: "memory", Key: nft.Concat{nft.IPSaddr, nft.CTOriginalIPDaddr}, Data: nft.Concat{nft.IPDaddr, nft.CTReplyProtoSrc}, Timeout: 3e9,
		}, nft.Counter{})),
	)
}

func TestFatesAfterUpdate(t *testing.T) {
	e := New([]*nft.Table{affinityTable(0)}, host)
	p := tcp(outside, "10.0.0.1:80")
	first, err := e.Fates(p)
	if err != nil {
		t.Fatal(err)
	}
	if len(first) != 2 {
		t.Fatalf("%d fates of the first packet, want 2:\n%s", len(first), first)
	}
	for i := range first {
		want := []string{first[i].String()}
		later, err := e.Fates(p, first[i].Added...)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, briefly(later)); diff != "" {
			t.Errorf("fates of the next packet (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(first[i].Added, later[0].Added); diff != "" {
			t.Errorf("what the next packet adds (-first +next):\n%s", diff)
		}
		another, err := e.Fates(tcp(client, "10.0.0.1:80"), first[i].Added...)
		if err != nil {
			t.Fatal(err)
		}
		if len(another) != 2 {
			t.Errorf("another client has %d fates, want 2:\n%s", len(another), another)
		}
	}
}

func TestFatesFullMap(t *testing.T) {
	e := New([]*nft.Table{affinityTable(1)}, host)
	first, err := e.Fates(tcp(outside, "10.0.0.1:80"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, from string
		want       int
	}{{"a client that is in it", outside, 1}, {"one more client", client, 0}} {
		fates, err := e.Fates(tcp(tc.from, "10.0.0.1:80"), first[0].Added...)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(fates[0].Added); got != tc.want {
			t.Errorf("%s adds %d elements, want %d", tc.name, got, tc.want)
		}
	}
}

func TestFatesErrors(t *testing.T) {
	iif := nft.Match{Field: nft.MetaIifname, Value: "eth0"}
	endless := chain("b", rule(nft.Jump("b")))
	wide := []*nft.Chain{base("a", nft.HookForward, 0, rule(nft.Jump("0")))}
	for i := range 14 {
		next := rule(nft.Jump(string(rune('1' + i))))
		wide = append(wide, chain(string(rune('0'+i)), next, next, next, next))
	}
	wide = append(wide, chain(string(rune('0'+14))))
	draws := rule(nft.InSet{Key: targetKey, Set: "pairs"})
	for _, tc := range []struct {
		name   string
		table  *nft.Table
		change func(*Packet)
		want   string
	}{
		{
			name:  "a statement that the ruleset package cannot read",
			table: tableOf(base("a", nft.HookForward, 0, rule(dport(80), nft.Unknown{Name: "limit"}))),
			want:  "evaluator: ip test a: unknown-limit: whether limit matches is not known",
		},
		{
			name:   "an interface that was not given",
			table:  tableOf(base("a", nft.HookForward, 0, rule(iif, nft.Drop))),
			change: func(p *Packet) { p.Interface = "" },
			want:   `evaluator: ip test a: iifname "eth0": the interface that the packet comes in by is not known`,
		},
		{
			name:   "ports of a protocol without, when an element could match",
			table:  tableOf(base("a", nft.HookForward, 0, rule(nft.InSet{Key: nft.Concat{nft.ThDport}, Set: "s"})), setOf("s", nft.Concat{nft.ThDport}, nft.Element{Key: nft.PortData(80)})),
			change: func(p *Packet) { p.Protocol = unix.IPPROTO_ICMP },
			want:   "evaluator: ip test a: th dport @s: icmp has no ports",
		},
		{
			name:  "a chain that is not there",
			table: tableOf(base("a", nft.HookForward, 0, rule(nft.Jump("b")))),
			want:  "evaluator: ip test a: jump b: there is no regular chain b",
		},
		{
			name:  "a set that is not there",
			table: tableOf(base("a", nft.HookForward, 0, rule(nft.InSet{Key: nft.Concat{nft.IPSaddr}, Set: "s"}))),
			want:  "evaluator: ip test a: ip saddr @s: there is no set or map s",
		},
		{
			name:  "a set with other keys",
			table: tableOf(base("a", nft.HookForward, 0, rule(nft.InSet{Key: nft.Concat{nft.IPSaddr}, Set: "s"})), setOf("s", targetKey)),
			want:  "evaluator: ip test a: ip saddr @s: s is looked up by 4 bytes, want 8",
		},
		{
			name:  "dnat where the kernel has none",
			table: tableOf(base("a", nft.HookForward, 0, dnat(1)), targets("10.0.0.1")),
			want:  "evaluator: ip test a: dnat ip to ip daddr . numgen random mod 1 map @targets: dnat works in nat chains at prerouting and output only",
		},
		{
			name:  "masquerade where the kernel has none",
			table: tableOf(nat("a", nft.HookPrerouting, rule(nft.Masquerade))),
			want:  "evaluator: ip test a: masquerade fully-random: masquerade works in nat chains at postrouting only",
		},
		{
			name:  "a field of the other family",
			table: tableOf(base("a", nft.HookForward, 0, rule(nft.Match{Field: nft.IP6Saddr, Value: netip.MustParsePrefix("fd00::/16")}))),
			want:  "evaluator: ip test a: ip6 saddr fd00::/16: packets of family ip have no ip6 saddr",
		},
		{
			name:  "chains of which nobody knows the order",
			table: tableOf(base("a", nft.HookForward, 0), base("b", nft.HookForward, 0)),
			want:  "evaluator: ip test a: chain b of table test has the same hook and priority; which one runs first is not known",
		},
		{
			name:  "chains that never end",
			table: tableOf(base("a", nft.HookForward, 0, rule(nft.Jump("b"))), endless),
			want:  "evaluator: ip test b: jump b: chains are nested more than 16 deep, which no kernel allows",
		},
		{
			name:  "chains that end too late",
			table: &nft.Table{Family: nft.FamilyIP, Name: "test", Chains: wide},
			want:  "the rules take longer than can be followed",
		},
		{
			name: "more draws than can be followed",
			table: tableOf(base("a", nft.HookForward, 0, draws, draws, draws, draws, draws, draws, draws, draws, draws, draws, draws, draws, draws, draws, draws, draws, draws),
				setOf("pairs", targetKey)),
			want: "evaluator: the rules draw numbers in more ways than can be followed",
		},
		{
			name:   "a source port that was not given, before anything else is compared with it",
			table:  tableOf(base("a", nft.HookForward, 0, rule(nft.Match{Field: nft.ThSport, Value: nft.PortData(1)}))),
			want:   "evaluator: ip test a: th sport 1: the source port is not known",
			change: func(*Packet) {},
		},
		{
			name:   "a packet that cannot be",
			table:  tableOf(),
			change: func(p *Packet) { p.Destination = netip.MustParseAddrPort("[fd00::1]:80") },
			want:   "evaluator: source 198.51.100.7 and destination fd00::1 are of different families",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := tcp(outside, "10.0.0.1:80")
			if tc.change != nil {
				tc.change(&p)
			}
			fates, err := New([]*nft.Table{tc.table}, Host{}).Fates(p)
			if err == nil || !strings.HasSuffix(err.Error(), tc.want) {
				t.Errorf("error %v, want %s\n%s", err, tc.want, fates)
			}
		})
	}
}

func TestFatesEndBesideATableOfOnePriority(t *testing.T) {
	defer func(before int) { maxPaths = before }(maxPaths)
	maxPaths = 1 << 10
	draws := rule(nft.InSet{Key: targetKey, Set: "pairs"}, nft.Accept)
	drawing := tableOf(base("a", nft.HookPrerouting, 0, slices.Repeat([]nft.Rule{draws}, 40)...), setOf("pairs", targetKey))
	other := tableOf(base("b", nft.HookPrerouting, 0))
	other.Name, other.Kernel = "other", &nft.KernelTable{Other: true}
	_, err := New([]*nft.Table{drawing, other}, Host{}).Fates(tcp(outside, "10.0.0.1:80"))
	if err == nil || !strings.HasSuffix(err.Error(), "in more ways than can be followed") {
		t.Errorf("error %v", err)
	}
}

// What is not known does no harm where it cannot decide.
func TestFatesUnknownField(t *testing.T) {
	key := nft.Concat{nft.IPDaddr, nft.MetaL4proto, nft.ThDport}
	frontends := setOf("frontends", key, nft.Element{Key: nft.AddrData(netip.MustParseAddr("10.0.0.1")) + nft.ProtoData(unix.IPPROTO_TCP) + nft.PortData(80)})
	p := tcp(outside, "10.0.0.1:80")
	p.Protocol, p.Interface = unix.IPPROTO_ICMP, ""
	p.Destination = netip.AddrPortFrom(p.Destination.Addr(), 0)
	fates, err := New([]*nft.Table{tableOf(frontends, base("a", nft.HookForward, 0, rule(nft.InSet{Key: key, Set: "frontends"}, nft.Drop)))}, Host{}).Fates(p)
	if err != nil {
		t.Fatal(err)
	}
	if !fates[0].Untouched() {
		t.Errorf("got %s, want it untouched", fates)
	}
}

// As many chains may be nested as in the kernel: 15 below a base chain.
func TestFatesNesting(t *testing.T) {
	chains := []any{base("a", nft.HookForward, 0, rule(nft.Jump("1")))}
	name := "1"
	for range 14 {
		next := name + "1"
		chains = append(chains, chain(name, rule(nft.Goto(next))))
		name = next
	}
	chains = append(chains, chain(name, rule(nft.Drop)))
	fates, err := New([]*nft.Table{tableOf(chains...)}, Host{}).Fates(tcp(outside, "10.0.0.1:80"))
	if err != nil {
		t.Fatal(err)
	}
	if fates[0].Result != Dropped {
		t.Errorf("got %s, want it dropped", fates)
	}
}

// Anything can be in the rules of a dump, also what no kernel takes.
func TestRulesThatNoKernelTakes(t *testing.T) {
	const many = math.MaxInt32
	for name, x := range map[string]nft.Statement{
		"a length beyond 32 bits":     nft.Match{Field: nft.Payload{Base: nft.NetworkHeader, Offset: 0xfffffff0, Length: 0x20}, Value: nft.Constant("x")},
		"more than a header":          nft.Match{Field: nft.Payload{Base: nft.NetworkHeader, Offset: 1, Length: 0x7fffffff}, Value: nft.Constant("x")},
		"a mark of nothing":           nft.Assign{To: nft.MetaMark, Value: nft.Opaque{}},
		"a ct mark of nothing":        nft.Assign{To: nft.CTMark, Value: nft.Opaque{}},
		"an address of nothing":       nft.NAT{Kind: nft.DestinationNAT, Family: nft.FamilyIP, Addr: nft.Opaque{}},
		"a port of nothing":           nft.NAT{Kind: nft.DestinationNAT, Family: nft.FamilyIP, Port: nft.Constant("")},
		"a verdict of no map":         nft.Vmap{Key: nft.Concat{nft.Opaque{}}, Map: "x"},
		"a value of no map":           nft.Match{Field: nft.Mapped{Key: nft.Concat{nft.IPSaddr}, Map: "x", Offset: many, Length: 4}, Value: nft.Constant("x")},
		"more bytes than a value has": nft.Match{Field: nft.Bits{Of: nft.IPSaddr, Mask: "12345678", Xor: "1"}, Value: nft.Constant("1234")},
		"more bytes than are swapped": nft.Match{Field: nft.Swapped{Of: nft.IPSaddr, Size: 0x7fffffff}, Value: nft.Constant("1234")},
		"a comparison with nothing":   nft.Match{Field: nft.IPSaddr, Value: nft.Constant("")},
	} {
		t.Run(name, func(t *testing.T) {
			table := &nft.Table{
				Family: nft.FamilyIP, Name: "x", Chains: []*nft.Chain{nat("c", nft.HookPrerouting, rule(x))}, Kernel: &nft.KernelTable{Other: true},
			}
			fates, err := New([]*nft.Table{table}, host).Fates(tcp(outside, "10.96.0.1:80"))
			if err != nil || len(fates) == 0 {
				t.Errorf("%d fates, error %v", len(fates), err)
			}
		})
	}
}

// A copy of a packet is the node's own, and untracked: it meets the hook output, where a rule can end it.
func TestCopies(t *testing.T) {
	neighbours := setOf("neighbours", nft.Concat{nft.IPDaddr}, nft.Element{Key: nft.AddrData(netip.MustParseAddr("10.0.0.1")), Value: nft.AddrData(netip.MustParseAddr("192.168.0.2"))})
	neighbours.Data = nft.Concat{nft.IPDaddr}
	dup := base("a", nft.HookPrerouting, 0, rule(nft.Dup{Key: neighbours.Key, Map: neighbours.Name}, nft.Drop))
	for _, tc := range []struct {
		name   string
		output nft.Rule
		want   string
	}{
		{"leave the node", rule(nft.Match{Field: nft.CTState, Value: nft.CTStateNew}, nft.Drop), "sent on, as it is, to where the routes lead to 192.168.0.2"},
		{"are not copied again", rule(nft.Dup{Key: neighbours.Key, Map: neighbours.Name}), "sent on, as it is, to where the routes lead to 192.168.0.2"},
		{"end where a rule of output drops untracked packets", rule(nft.Match{Field: nft.CTState, Value: nft.CTStateUntracked}, nft.Drop), "dropped"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fates, err := New([]*nft.Table{tableOf(dup, neighbours, base("b", nft.HookOutput, 0, tc.output))}, host).Fates(tcp(outside, "10.0.0.1:80"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{tc.want}, briefly(fates)); diff != "" {
				t.Errorf("fates (-want +got):\n%s\n%s", diff, fates)
			}
		})
	}
}
