package nft

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
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
		{"mark bits", Match{Field: MetaMark, Mask: 0x4000, Value: 0x4000}, "meta mark & 0x00004000 == 0x00004000"},
		{"an interface", Match{Field: MetaIifname, Op: NotEqual, Value: "cbr0"}, `iifname != "cbr0"`},
		{"interfaces by the start of their names", Match{Field: MetaOifname, Op: Equal, Value: "veth*"}, `oifname "veth*"`},
		{"a set", InSet{Concat{IPDaddr}, Equal, "cluster-ips"}, "ip daddr @cluster-ips"},
		{"not in a set", InSet{Concat{IPSaddr, IPDaddr}, NotEqual, "hairpin"}, "ip saddr . ip daddr != @hairpin"},
		{"a verdict map", Vmap{front, "service-ips"}, "ip daddr . meta l4proto . th dport vmap @service-ips"},
		{"setting mark bits", SetMark{Or: 0x4000}, "meta mark set meta mark | 0x00004000"},
		{"flipping mark bits", SetMark{Xor: 0x4000}, "meta mark set meta mark ^ 0x00004000"},
		{"destination NAT", DNAT{FamilyIP, append(slices.Clone(front), Numgen{3}), "endpoints"}, "dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @endpoints"},
		{"destination NAT for IPv6", DNAT{FamilyIP6, Concat{IP6Daddr}, "m"}, "dnat ip6 to ip6 daddr map @m"},
		{"an update of a map", affinityUpdate(FamilyIP6).Statements[1], "update @affinity { ip6 saddr . ct original ip6 daddr . meta l4proto . ct original proto-dst timeout 3h : ip6 daddr . ct reply proto-src }"},
		{"an update with a timeout of several units", Update{"m", Concat{IPSaddr}, Concat{IPDaddr}, 25*time.Hour + 62*time.Second + 5*time.Millisecond}, "update @m { ip saddr timeout 1d1h1m2s5ms : ip daddr }"},
		{"masquerade", Masquerade{}, "masquerade fully-random"},
		{"reject", Reject{FamilyIP6}, "reject"},
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
