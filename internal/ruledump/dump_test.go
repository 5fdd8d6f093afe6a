package ruledump

import (
	"bytes"
	"errors"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/version"
	"github.com/nftproxy/nftproxy/model"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/nft"
)

// texts prints tables with their sets in the order of their names, since JSON has sets and maps apart.
func texts(tables []*nft.Table) []string {
	var out []string
	for _, t := range tables {
		sorted := *t
		sorted.Sets = slices.SortedFunc(slices.Values(t.Sets), func(a, b *nft.Set) int { return strings.Compare(a.Name, b.Name) })
		out = append(out, sorted.String())
	}
	return out
}

// everything is a table with all that the compiler's golden cases do not have.
func everything() *nft.Table {
	clients := &nft.Set{Name: "clients", Key: nft.Concat{nft.IPSaddr}, Data: nft.Concat{nft.IPDaddr, nft.ThDport}, Dynamic: true, Size: 10}
	clients.Put(nft.Element{Key: nft.Data("\x0a\x00\x00\x01"), Value: nft.Data("\x0a\x00\x00\x02") + nft.PortData(80), Timeout: 26 * time.Hour, Expires: 90 * time.Second})
	ranges := &nft.Set{Name: "ranges", Key: nft.Concat{nft.MetaL4proto, nft.IPSaddr}, Interval: true}
	ranges.Put(nft.Element{Key: nft.ProtoData(47) + "\x0a\x00\x00\x01", KeyEnd: nft.ProtoData(47) + "\x0a\x00\x00\x09", Comment: "nine"})
	verdicts := &nft.Set{Name: "verdicts", Key: nft.Concat{nft.MetaMark, nft.MetaIifname}, Verdicts: true}
	verdicts.Put(nft.Element{Key: nft.CatchAll, Verdict: nft.Return})
	verdicts.Put(nft.Element{Key: nft.IntegerData(5) + nft.Data("eth0"+strings.Repeat("\x00", 12)), Verdict: nft.Jump("other")})
	counted := &nft.Set{Name: "counted", Key: nft.Concat{nft.IPSaddr}, Counter: true}
	for _, key := range []nft.Data{"\x0b\x00\x00\x01", "\x0b\x00\x00\x02", "\x0b\x00\x00\x03"} {
		counted.Put(nft.Element{Key: key})
	}
	rule := func(s ...nft.Statement) nft.Rule { return nft.Rule{Statements: s, Comment: "a rule"} }
	return &nft.Table{
		Family: nft.FamilyIP, Name: "kube-proxy", Comment: "all of it", Owner: true, Persist: true,
		Sets: []*nft.Set{clients, ranges, verdicts, counted, {Name: "m", Key: nft.Concat{nft.IPSaddr, nft.Numgen{Mod: 3}}, Data: nft.Concat{nft.IPDaddr, nft.ThDport}}},
		Chains: []*nft.Chain{{Name: "base", Type: nft.TypeFilter, Hook: nft.HookForward, Priority: -7, DropPolicy: true, Comment: "base chain", Rules: []nft.Rule{
			rule(nft.Match{Field: nft.MetaOifname, Op: nft.NotEqual, Value: "eth 0*"}, nft.Counter{}, nft.Accept),
			rule(nft.Match{Field: nft.CTState, Value: 6}, nft.Drop),
			rule(nft.MatchMark(0x4000, 0x4000), nft.FlipMark(0x4000), nft.SetMark(1), nft.Masquerade),
			rule(nft.Match{Field: nft.CTOriginalProtoDst, Op: nft.NotEqual, Value: nft.PortData(80)}, nft.Match{Field: nft.IPDaddr, Op: nft.NotEqual, Value: mustPrefix("10.0.0.0/8")}, nft.Goto("other")),
			rule(nft.InSet{Key: nft.Concat{nft.IPSaddr}, Op: nft.NotEqual, Set: "clients"}, nft.Reject{Family: nft.FamilyIP}),
			rule(nft.Match{Field: nft.FibDaddrType, Value: nft.IntegerData(2)}, nft.Match{Field: nft.MetaMark, Value: nft.IntegerData(255)}, nft.Vmap{Key: nft.Concat{nft.MetaMark, nft.MetaIifname}, Map: "verdicts"}),
			rule(nft.DNAT(nft.FamilyIP, nft.Concat{nft.IPSaddr, nft.JHash{Field: nft.IPSaddr, Mod: 3, Seed: 9}}, "m")),
			rule(nft.Update{Map: "clients", Key: nft.Concat{nft.IPSaddr}, Data: nft.Concat{nft.IPDaddr, nft.CTReplyProtoSrc}, Timeout: 3*24*time.Hour + 1500*time.Millisecond}),
		}}, {Name: "other"}},
	}
}

func TestDumpOfGoldenCases(t *testing.T) {
	for _, c := range flows.Cases(t) {
		t.Run(c.Name+"/reads back as it was", func(t *testing.T) {
			written, err := FromManifests(c.ManifestsDir(t), Compilation{Node: lab.NodeName, Config: c.ConfigFile(t)})
			if err != nil {
				t.Fatal(err)
			}
			expectSame(t, written, writeAndRead(t, written))
		})
	}
}

func TestDumpOfEverything(t *testing.T) {
	counts := Counts{{nft.FamilyIP, "counted"}: {"\x0b\x00\x00\x01": {Packets: 3, Bytes: math.MaxUint64}, "\x0b\x00\x00\x02": {}}}
	written := &Snapshot{
		Header: Header{Origin: Kernel, Node: "node-1", NodeSource: NodeFromHost, Taken: time.Unix(1e9, 0).UTC(), Generation: 7, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, IPv4Only: true},
		Tables: []*nft.Table{everything()}, Counts: counts,
	}
	read := writeAndRead(t, written)
	expectSame(t, written, read)
	expectSame(t, written, writeAndRead(t, read))
	t.Run("has counts as text", func(t *testing.T) {
		for _, text := range []string{`"packets": 3`, `"bytes": 18446744073709551615`, `"packets": 0`} {
			if !strings.Contains(dumpText(t, written), text) {
				t.Errorf("no %s", text)
			}
		}
	})
}

// besideOthers is a snapshot with tables of other programs.
func besideOthers(tb testing.TB) *Snapshot {
	tb.Helper()
	fw := everything()
	fw.Name = "fw"
	recording, err := fw.Record()
	if err != nil {
		tb.Fatal(err)
	}
	other, err := recording.Other()
	if err != nil {
		tb.Fatal(err)
	}
	own := &nft.Table{Family: nft.FamilyIP, Name: "kube-proxy", Chains: []*nft.Chain{{Name: "c"}}}
	return &Snapshot{
		Tables: []*nft.Table{own}, Ordered: []*nft.Table{other, own}, otherRecordings: []nft.Recording{recording, nil},
		Host: evaluator.Host{
			Routes:     []evaluator.Route{{Destination: mustPrefix("0.0.0.0/0"), Interface: "eth0", Gateway: netip.MustParseAddr("192.168.0.254"), MTU: 1400}},
			Interfaces: map[string]uint32{"eth0": 2},
			Devices:    map[string]evaluator.Device{"eth0": {MTU: 1500, Forwarding: evaluator.On, Forwarding6: evaluator.Off, RPFilter: evaluator.Strict}},
		},
		NotLookedAt: []string{"iptables-legacy: the kernel has its tables filter"},
	}
}

func TestDumpOfOtherPrograms(t *testing.T) {
	written := besideOthers(t)
	read := writeAndRead(t, written)
	t.Run("keeps the order of all tables", func(t *testing.T) {
		if diff := cmp.Diff(texts(written.Ordered), texts(read.Ordered)); diff != "" || read.Ordered[1] != read.Tables[0] {
			t.Errorf("-written +read:\n%s", diff)
		}
	})
	t.Run("keeps what is beside the tables", func(t *testing.T) {
		read.Host.Lookup = nil
		if diff := cmp.Diff(written.Host, read.Host, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("-written +read:\n%s", diff)
		}
		if diff := cmp.Diff(written.NotLookedAt, read.NotLookedAt); diff != "" {
			t.Errorf("-written +read:\n%s", diff)
		}
	})
	t.Run("names the table that it cannot read", func(t *testing.T) {
		written.otherRecordings[0] = nft.Recording("\x10\x00\x00")
		_, err := FromDump(strings.NewReader(dumpText(t, written)))
		if want := "table ip fw of another program: nft: the recording is cut off"; err == nil || err.Error() != want {
			t.Errorf("error %v\nwant  %s", err, want)
		}
	})
}

func dumpText(tb testing.TB, s *Snapshot) string {
	tb.Helper()
	var b strings.Builder
	if err := s.Write(&b); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

func writeAndRead(tb testing.TB, s *Snapshot) *Snapshot {
	tb.Helper()
	read, err := FromDump(strings.NewReader(dumpText(tb, s)))
	if err != nil {
		tb.Fatal(err)
	}
	return read
}

func expectSame(tb testing.TB, written, read *Snapshot) {
	tb.Helper()
	if diff := cmp.Diff(texts(written.Tables), texts(read.Tables)); diff != "" {
		tb.Errorf("-written +read:\n%s", diff)
	}
	if diff := cmp.Diff(written.Header, read.Header, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		tb.Errorf("-written +read:\n%s", diff)
	}
}

func TestReadRefuses(t *testing.T) {
	good := dumpText(t, &Snapshot{Tables: []*nft.Table{everything()}})
	netlink := regexp.MustCompile(`"netlink": ".*?"`)
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", "the dump is empty"},
		{"half a dump", good[:len(good)/2], "the dump is truncated: it ends in the middle"},
		{"nft's listing", "table ip kube-proxy {\n}\n", "this is no dump: at byte 2: invalid character 'a' in literal true (expecting 'r')"},
		{"other JSON", `{"nftables": []}`, "this is no dump of ruledump's: it has no apiVersion; ruledump.nftproxy/v1 Ruleset is wanted, as `ruledump live -o json` writes it"},
		{"a newer version", strings.Replace(good, "/v1", "/v2", 1), `the dump has apiVersion "ruledump.nftproxy/v2", and this ruledump reads ruledump.nftproxy/v1: use the ruledump of the version that wrote it`},
		{"a newer version of another shape", `{"apiVersion": "ruledump.nftproxy/v9", "kind": "Ruleset", "tables": "none"}`, `the dump has apiVersion "ruledump.nftproxy/v9", and this ruledump reads ruledump.nftproxy/v1: use the ruledump of the version that wrote it`},
		{"another kind", strings.Replace(good, "Ruleset", "Services", 1), "the document is of kind \"Services\", and a dump is of kind Ruleset, as `ruledump live -o json` writes it"},
		{"two dumps", good + good, "there is more after the end of the dump"},
		{"no messages", strings.Replace(netlink.ReplaceAllString(good, `"netlink": ""`), `"writer": "`, `"writer": "older `, 1), "table ip kube-proxy: the dump has no netlink messages of it, so this ruledump cannot read it; the one that wrote it can (\"older ruledump " + version.Own() + "\")"},
		{"no base64", netlink.ReplaceAllString(good, `"netlink": "%"`), "the dump cannot be read: illegal base64 data at input byte 0"},
		{"other messages", netlink.ReplaceAllString(good, `"netlink": "AAAA"`), "table ip kube-proxy: nft: the recording is cut off"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := FromDump(strings.NewReader(tt.text))
			if err == nil || err.Error() != tt.want {
				t.Errorf("error %v\nwant  %s", err, tt.want)
			}
		})
	}
	t.Run("every truncation", func(t *testing.T) {
		for n := 1; n < len(strings.TrimRight(good, "\n")); n++ {
			if _, err := FromDump(strings.NewReader(good[:n])); !errors.Is(err, errTruncated) {
				t.Fatalf("%d of %d bytes: %v", n, len(good), err)
			}
		}
	})
}

// Whatever a dump holds, it is read or refused, and what was read can be printed, written and read again.
func FuzzRead(f *testing.F) {
	f.Add([]byte(dumpText(f, &Snapshot{Tables: []*nft.Table{{Family: nft.FamilyIP, Name: "kube-proxy", Chains: []*nft.Chain{{Name: "c"}}}}})))
	f.Add([]byte(dumpText(f, besideOthers(f))))
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := FromDump(bytes.NewReader(data)); err == nil {
			expectSame(t, s, writeAndRead(t, s))
		}
	})
}

func mustPrefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// FuzzTables shows that no tables make those fall over who read meaning into them: the proxy at its start, and
// ruledump. Another process can put anything into tables of the proxy's name, and anything can be in a dump.
func FuzzTables(f *testing.F) {
	for _, table := range compiled(f) {
		recording, err := table.Record()
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(recording))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if other, err := nft.Recording(data).Other(); err == nil {
			_ = other.String()
			for _, set := range other.Sets {
				_, _ = set.Find(nft.Data(make([]byte, min(set.Key.Len(), 64))))
			}
		}
		read, err := nft.Recording(data).Table()
		if err != nil {
			return
		}
		tables := []*nft.Table{read}
		for _, ip := range compiler.NodeFromTables(tables...).IPs {
			if !ip.IsValid() {
				t.Errorf("the node has the address %v", ip)
			}
		}
		for _, table := range tables {
			frontends, err := compiler.Read(table)
			if err != nil && len(frontends) > 0 {
				t.Errorf("%d frontends with the error %v", len(frontends), err)
			}
			if tx := nft.Diff(nil, table); !strings.HasPrefix(tx.String(), "add table ") {
				t.Errorf("a table is made by\n%s", tx)
			}
			// No wanted table has objects: a difference always removes them.
			if tx := nft.Diff(table, table); !tx.Empty() && len(table.Kernel.Objects) == 0 {
				t.Errorf("a table differs from itself by\n%s", tx)
			}
		}
	})
}

// compiled returns the tables of a node with one Service port that has all kinds of frontends.
func compiled(tb testing.TB) []*nft.Table {
	tb.Helper()
	c, err := compiler.New(compiler.Default())
	if err != nil {
		tb.Fatal(err)
	}
	id := model.PortID{Namespace: "default", Service: "web", Family: model.IPv4, Protocol: model.TCP}
	c.Apply(&model.Changes{
		Full: true,
		Node: &model.Node{IPs: []netip.Addr{netip.MustParseAddr("192.168.0.1")}},
		Ports: map[model.PortID]*model.ServicePort{id: {
			ID: id, ClusterIP: netip.MustParseAddr("10.96.0.10"), Port: 80, NodePort: 30080,
			LoadBalancerIPs:          []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			LoadBalancerSourceRanges: []netip.Prefix{mustPrefix("198.51.100.0/24")},
			Cluster:                  []model.Endpoint{{AddrPort: netip.MustParseAddrPort("10.244.1.5:8080"), Local: true}},
		}},
	})
	return c.Tables()
}
