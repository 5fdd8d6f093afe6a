package nft

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

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
		{Concat{MetaL4proto}, Values{1}, "1"},
		{Concat{IPDaddr, ThDport}, Values{v4}, "ip daddr . th dport has 2 parts, and there are 1 values"},
		{Concat{IPDaddr}, Values{v6}, "part 1 of ip daddr: ip daddr cannot be"},
		{Concat{IP6Daddr}, Values{v4}, "not a netip.Addr of that family"},
		{Concat{IPDaddr}, Values{netip.Addr{}}, "not a netip.Addr of that family"},
		{Concat{IPDaddr}, Values{"192.0.2.1"}, `cannot be "192.0.2.1"`},
		{Concat{IPDaddr, ThDport}, Values{v4, 65536}, "part 2 of ip daddr . th dport: th dport cannot be 65536: not an integer from 0 to 65535"},
		{Concat{ThDport}, Values{-1}, "not an integer from 0"},
		{Concat{ThDport}, Values{nil}, "not an integer from 0"},
		{Concat{MetaL4proto}, Values{"icmp"}, "a name other than tcp, udp and sctp"},
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
