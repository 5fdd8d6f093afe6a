package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestStatementString(t *testing.T) {
	pods := netip.MustParsePrefix("10.244.0.0/16")
	front := Concat{IPDaddr, MetaL4proto, ThDport}
	for _, tc := range []struct {
		name      string
		statement Statement
		want      string
	}{
		{"equality is not written", Match{Field: MetaL4proto, Op: Equal, Value: ProtoData(unix.IPPROTO_TCP)}, "meta l4proto tcp"},
		{"inequality is", Match{Field: ThDport, Op: NotEqual, Value: PortData(53)}, "th dport != 53"},
		{"a protocol without a name is a number", Match{Field: MetaL4proto, Op: Equal, Value: ProtoData(99)}, "meta l4proto 99"},
		{"sctp has a name", Match{Field: MetaL4proto, Op: Equal, Value: ProtoData(unix.IPPROTO_SCTP)}, "meta l4proto sctp"},
		{"an address type has a name", Match{Field: FibDaddrType, Op: Equal, Value: IntegerData(unix.RTN_LOCAL)}, "fib daddr type local"},
		{"an address type without a name is a number", Match{Field: FibSaddrType, Op: Equal, Value: IntegerData(200)}, "fib saddr type 200"},
		{"a mark is hexadecimal", Match{Field: MetaMark, Op: Equal, Value: IntegerData(0x4000)}, "meta mark 0x00004000"},
		{"a prefix", Match{Field: IPSaddr, Op: NotEqual, Value: pods}, "ip saddr != 10.244.0.0/16"},
		{"a prefix loses its host bits", Match{Field: IPSaddr, Op: Equal, Value: netip.MustParsePrefix("10.244.1.2/16")}, "ip saddr 10.244.0.0/16"},
		{"a prefix of one address is the address", Match{Field: IPDaddr, Op: Equal, Value: netip.MustParsePrefix("10.0.0.1/32")}, "ip daddr 10.0.0.1"},
		{"an IPv6 prefix", Match{Field: IP6Daddr, Op: Equal, Value: netip.MustParsePrefix("fd00::/45")}, "ip6 daddr fd00::/45"},
		{"one connection state", Match{Field: CTState, Value: CTStateNew}, "ct state new"},
		{"two connection states in the order of their bits", Match{Field: CTState, Value: CTStateNew | 2}, "ct state established,new"},
		{"a state without a name", Match{Field: CTState, Value: 1 << 20}, "ct state 0x00100000"},
		{"a connection status", Match{Field: CTStatus, Value: CTStatusDNAT}, "ct status dnat"},
		{"mark bits", MatchMark(0x4000, 0x4000), "meta mark & 0x00004000 == 0x00004000"},
		{"an interface", Match{Field: MetaIifname, Op: NotEqual, Value: "cbr0"}, `iifname != "cbr0"`},
		{"interfaces by the start of their names", Match{Field: MetaOifname, Op: Equal, Value: "veth*"}, `oifname "veth*"`},
		{"a set", InSet{Concat{IPDaddr}, Equal, "cluster-ips"}, "ip daddr @cluster-ips"},
		{"not in a set", InSet{Concat{IPSaddr, IPDaddr}, NotEqual, "hairpin"}, "ip saddr . ip daddr != @hairpin"},
		{"a verdict map", Vmap{front, "service-ips"}, "ip daddr . meta l4proto . th dport vmap @service-ips"},
		{"setting mark bits", SetMark(0x4000), "meta mark set meta mark | 0x00004000"},
		{"flipping mark bits", FlipMark(0x4000), "meta mark set meta mark ^ 0x00004000"},
		{"destination NAT", DNAT(FamilyIP, append(slices.Clone(front), Numgen{Mod: 3}), "endpoints"), "dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @endpoints"},
		{"destination NAT for IPv6", DNAT(FamilyIP6, Concat{IP6Daddr}, "m"), "dnat ip6 to ip6 daddr map @m"},
		{"an update of a map", affinityUpdate(FamilyIP6).Statements[1], "update @affinity { ip6 saddr . ct original ip6 daddr . meta l4proto . ct original proto-dst timeout 3h : ip6 daddr . ct reply proto-src }"},
		{"an update of a set", Update{Map: "m", Key: Concat{IPSaddr}, Timeout: time.Minute}, "update @m { ip saddr timeout 1m }"},
		{"a delete", Delete{"m", Concat{IPSaddr, ThSport}}, "delete @m { ip saddr . th sport }"},
		{"an update with a timeout of several units", Update{Map: "m", Key: Concat{IPSaddr}, Data: Concat{IPDaddr}, Timeout: 25*time.Hour + 62*time.Second + 5*time.Millisecond}, "update @m { ip saddr timeout 1d1h1m2s5ms : ip daddr }"},
		{"masquerade", Masquerade, "masquerade fully-random"},
		{"reject", Reject{Family: FamilyIP6}, "reject"},
		{"counter", Counter{}, "counter"},
		{"accept", Accept, "accept"},
		{"drop", Drop, "drop"},
		{"return", Return, "return"},
		{"jump", Jump("services"), "jump services"},
		{"goto", Goto("cluster-2"), "goto cluster-2"},
		{"no verdict", Verdict{}, "verdict-0"},
		{"what could not be read", Unknown{"limit"}, "unknown-limit"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.statement.String(); got != tc.want {
				t.Errorf("printed %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPriorityString(t *testing.T) {
	for _, tc := range []struct {
		priority int32
		hook     Hook
		want     string
	}{
		{-100, HookPrerouting, "dstnat"},
		{-110, HookPrerouting, "dstnat - 10"},
		{-99, HookPrerouting, "dstnat + 1"},
		{-111, HookPrerouting, "-111"},
		{-100, HookOutput, "-100"},
		{0, HookForward, "filter"},
		{-10, HookForward, "filter - 10"},
		{100, HookPostrouting, "srcnat"},
		{105, HookPostrouting, "srcnat + 5"},
		{100, HookInput, "100"},
		{300, HookOutput, "300"},
		{-150, HookOutput, "mangle"},
		{-305, HookOutput, "raw - 5"},
		{55, HookForward, "security + 5"},
	} {
		if got := priorityString(tc.priority, tc.hook); got != tc.want {
			t.Errorf("priority %d in %s prints %q, want %q", tc.priority, tc.hook, got, tc.want)
		}
	}
}

func TestSortChains(t *testing.T) {
	want := []string{"pre-early", "pre", "in", "post", "cluster-2", "cluster-10", "cluster-100", "local-1", "services"}
	chains := []*Chain{
		{Name: "services"}, {Name: "cluster-100"}, {Name: "local-1"}, {Name: "cluster-2"}, {Name: "cluster-10"},
		{Name: "post", Hook: HookPostrouting, Priority: -300},
		{Name: "in", Hook: HookInput},
		{Name: "pre", Hook: HookPrerouting, Priority: -100},
		{Name: "pre-early", Hook: HookPrerouting, Priority: -110},
	}
	SortChains(chains)
	var got []string
	for _, c := range chains {
		got = append(got, c.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestTableString(t *testing.T) {
	t.Run("has the elements in the order of their keys", testElementsPrintInTheOrderOfTheirKeys)
	t.Run("has comments as the kernel gets them", testCommentsPrintAsTheKernelGetsThem)
	t.Run("has data of another length in hexadecimal", testDataOfAnotherLengthPrintsAsHexadecimal)
}

func testElementsPrintInTheOrderOfTheirKeys(t *testing.T) {
	s := &Set{Name: "ips", Key: Concat{IPDaddr}}
	for _, a := range []string{"10.0.0.20", "10.0.0.3", "9.0.0.1", "200.0.0.1"} {
		s.Put(Element{Key: AddrData(netip.MustParseAddr(a))})
	}
	var got []string
	for _, e := range s.Elements() {
		got = append(got, s.FormatElement(e))
	}
	if diff := cmp.Diff([]string{"9.0.0.1", "10.0.0.3", "10.0.0.20", "200.0.0.1"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func testCommentsPrintAsTheKernelGetsThem(t *testing.T) {
	long := strings.Repeat("x", 200)
	short := strings.Repeat("x", 124) + "..."
	for _, tc := range []struct{ name, comment, want string }{
		{"127 bytes stay", strings.Repeat("y", 127), `"` + strings.Repeat("y", 127) + `"`},
		{"more are cut", long, `"` + short + `"`},
		{"a quote becomes an apostrophe", `say "hi"`, `"say 'hi'"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ips := &Set{Name: "ips", Key: Concat{IPDaddr}, Comment: tc.comment}
			ips.Put(Element{Key: AddrData(netip.MustParseAddr("10.0.0.1")), Comment: tc.comment})
			table := &Table{Family: FamilyIP, Name: "t", Comment: tc.comment, Sets: []*Set{ips},
				Chains: []*Chain{{Name: "c", Comment: tc.comment, Rules: []Rule{{Statements: []Statement{Drop}, Comment: tc.comment}}}}}
			if got := strings.Count(table.String(), "comment "+tc.want); got != 5 {
				t.Errorf("%d comments print as %s, want 5:\n%s", got, tc.want, table)
			}
		})
	}
}

func TestComment(t *testing.T) {
	t.Run("that is long or quoted is read back, and loaded by nft", testLongAndQuotedCommentsReadBackAndLoad)
	t.Run("is read back as it was wanted", testCommentsAreReadBackAsWhatWasWanted)
}

func testLongAndQuotedCommentsReadBackAndLoad(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	comment := strings.Repeat("x", 200)
	ips := &Set{Name: "ips", Key: Concat{IPDaddr}}
	ips.Put(Element{Key: AddrData(netip.MustParseAddr("10.0.0.1")), Comment: comment})
	want := &Table{Family: FamilyIP, Name: "t", Comment: comment, Sets: []*Set{ips},
		Chains: []*Chain{{Name: "c", Comment: comment, Rules: []Rule{{Statements: []Statement{Drop}, Comment: comment}}}}}
	if _, err := c.Commit(t.Context(), Diff(nil, want)); err != nil {
		t.Fatal(err)
	}
	got, err := c.ReadTable(t.Context(), FamilyIP, "t")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(text(want), text(got)); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	runNft(t, "delete table ip t\n"+want.String(), "-f", "-")
}

func TestTransactionString(t *testing.T) {
	t.Run("is a script for nft", testTransactionStringIsAScriptForNft)
}

func testTransactionStringIsAScriptForNft(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	for _, f := range Families {
		want := loadable(t, everything(f))
		runNft(t, Diff(nil, want).String(), "-f", "-")
		got, err := c.ReadTable(t.Context(), f, want.Name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(text(want), text(got)); diff != "" {
			t.Errorf("%s: after the script (-want +got):\n%s", f, diff)
		}
		runNft(t, Diff(want, nil).String(), "-f", "-")
		if got, err := c.ReadTable(t.Context(), f, want.Name); err != nil || got != nil {
			t.Errorf("%s: after the script that deletes: ReadTable = %v, %v", f, got, err)
		}
	}
}

func testDataOfAnotherLengthPrintsAsHexadecimal(t *testing.T) {
	if got := (Concat{IPDaddr}).Format("abc"); got != "0x616263" {
		t.Errorf("printed %s", got)
	}
}

func TestConcatPack(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	type protocol uint8
	for _, tc := range []struct {
		key    Concat
		values Values
		want   string // an element, or a part of the error
	}{
		{Concat{IPDaddr, MetaL4proto, ThDport}, Values{v4, "udp", 53}, "192.0.2.1 . udp . 53"},
		{Concat{IP6Saddr, MetaL4proto, ThDport, Numgen{Mod: 9}}, Values{v6, protocol(132), uint16(65535), int64(7)}, "2001:db8::1 . sctp . 65535 . 7"},
		{Concat{MetaMark}, Values{uint32(0x4000)}, "0x00004000"},
		{Concat{MetaIifname, IPSaddr}, Values{"eth0", v4}, `"eth0" . 192.0.2.1`},
		{Concat{MetaL4proto}, Values{2}, "2"},
		{Concat{IPDaddr, ThDport}, Values{v4}, "ip daddr . th dport has 2 parts, and there are 1 values"},
		{Concat{IPDaddr}, Values{v6}, "part 1 of ip daddr: ip daddr cannot be"},
		{Concat{IP6Daddr}, Values{v4}, "not a netip.Addr of that family"},
		{Concat{IPDaddr}, Values{netip.Addr{}}, "not a netip.Addr of that family"},
		{Concat{IPDaddr}, Values{"192.0.2.1"}, `cannot be "192.0.2.1"`},
		{Concat{IPDaddr, ThDport}, Values{v4, 65536}, "part 2 of ip daddr . th dport: th dport cannot be 65536: not an integer from 0 to 65535"},
		{Concat{ThDport}, Values{-1}, "not an integer from 0"},
		{Concat{ThDport}, Values{nil}, "not an integer from 0"},
		{Concat{MetaL4proto}, Values{"igmp"}, "a name other than tcp, udp, sctp, icmp and ipv6-icmp"},
		{Concat{MetaL4proto}, Values{256}, "not an integer from 0 to 255"},
		{Concat{MetaMark}, Values{uint64(1 << 32)}, "not an integer from 0 to 4294967295"},
		{Concat{MetaIifname}, Values{"a-name-of-16-byte"}, "at most 15 are allowed"},
		{Concat{MetaIifname}, Values{"a\x00"}, "NUL"},
	} {
		got, err := tc.key.Pack(tc.values...)
		if err == nil && tc.key.Format(got) != tc.want || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("Pack(%v) to %s = %s, %v; want %s", tc.values, tc.key, tc.key.Format(got), err, tc.want)
		}
	}
	t.Run("makes the same as the append functions", testConcatPackMakesTheSameAsTheAppendFunctions)
}

func TestSetNewElement(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	services := &Set{Name: "services", Key: Concat{IPDaddr, ThDport}, Verdicts: true}
	endpoints := &Set{Name: "endpoints", Key: Concat{IPDaddr, Numgen{Mod: 2}}, Data: Concat{IPDaddr, ThDport}}
	sources := &Set{Name: "sources", Key: Concat{IPDaddr, IPSaddr}, Interval: true}
	for _, tc := range []struct {
		set   *Set
		key   Values
		value []any
		want  string
	}{
		{services, Values{addr, 80}, []any{Goto("cluster-2")}, "192.0.2.1 . 80 : goto cluster-2"},
		{services, Values{addr, 80}, []any{Drop}, "192.0.2.1 . 80 : drop"},
		{endpoints, Values{addr, 1}, []any{addr, 8080}, "192.0.2.1 . 1 : 192.0.2.1 . 8080"},
		{sources, Values{addr, netip.MustParsePrefix("198.51.100.7/24")}, nil, "192.0.2.1 . 198.51.100.0/24"},
		{sources, Values{addr, Range{addr, netip.MustParseAddr("192.0.2.9")}}, nil, "192.0.2.1 . 192.0.2.1-192.0.2.9"},
		{sources, Values{addr, addr}, nil, "192.0.2.1 . 192.0.2.1"},
		{services, Values{addr, 80}, nil, "a verdict map takes one verdict, not [] (value of map services)"},
		{services, Values{addr, 80}, []any{Verdict{}}, "a verdict map takes one verdict"},
		{services, Values{addr}, []any{Drop}, "there are 1 values (key of map services)"},
		{endpoints, Values{addr, 1}, []any{addr}, "there are 1 values (value of map endpoints)"},
		{sources, Values{addr, addr}, []any{addr}, "there are 1 values (value of set sources)"},
		{sources, Values{addr, Range{netip.MustParseAddr("192.0.2.9"), addr}}, nil, "the range ends at 192.0.2.1 . 192.0.2.1, before"},
		{sources, Values{addr, netip.Prefix{}}, nil, "part 2 of ip daddr . ip saddr is not a valid prefix"},
		{sources, Values{addr, netip.MustParsePrefix("fd00::/8")}, nil, "not a netip.Addr of that family"},
		{endpoints, Values{addr, netip.MustParsePrefix("198.51.100.7/24")}, []any{addr, 80}, "not an integer"},
	} {
		e, err := tc.set.NewElement(tc.key, tc.value...)
		if err == nil && tc.set.FormatElement(e) != tc.want || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("NewElement(%v, %v) = %s, %v; want %s", tc.key, tc.value, tc.set.FormatElement(e), err, tc.want)
		}
		if err == nil && tc.set.lengths().check(tc.set, &e, true) != nil {
			t.Errorf("the set %s cannot hold %s", tc.set.Name, tc.set.FormatElement(e))
		}
	}
}

// Pack makes what the unchecked functions make.
func testConcatPackMakesTheSameAsTheAppendFunctions(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		f := drawFamily(r)
		addr, port := netip.MustParseAddr("192.0.2.1"), rapid.Uint16().Draw(r, "port")
		if f == FamilyIP6 {
			addr = netip.MustParseAddr("2001:db8::1")
		}
		proto, slot := rapid.Uint8().Draw(r, "protocol"), rapid.Uint32().Draw(r, "slot")
		got, err := append(frontendKey(f), Numgen{Mod: 2}).Pack(addr, proto, port, slot)
		if err != nil {
			r.Fatal(err)
		}
		want := AddrData(addr) + ProtoData(proto) + PortData(port) + IntegerData(slot)
		appended := AppendInteger(AppendPort(AppendProto(AppendAddr(nil, addr), proto), port), slot)
		if diff := cmp.Diff([]string{fmt.Sprintf("%x", want), fmt.Sprintf("%x", appended)}, []string{fmt.Sprintf("%x", got), fmt.Sprintf("%x", got)}); diff != "" {
			r.Fatal(diff)
		}
	})
}
