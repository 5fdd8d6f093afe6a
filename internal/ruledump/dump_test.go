package ruledump

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

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
		Kernel: &nft.KernelTable{OwnerPort: 7, Objects: []nft.Object{{Kind: "counter", Name: "web"}, {Kind: "ct helper", Name: "ftp"}}},
		Sets:   []*nft.Set{clients, ranges, verdicts, counted},
		Chains: []*nft.Chain{{Name: "base", Type: nft.TypeFilter, Hook: nft.HookForward, Priority: -7, DropPolicy: true, Comment: "base chain", Rules: []nft.Rule{
			rule(nft.Match{Field: nft.MetaOifname, Op: nft.NotEqual, Value: "eth 0*"}, nft.Counter{}, nft.Accept),
			rule(nft.Match{Field: nft.CTState, Value: 6}, nft.Unknown{Name: "limit"}, nft.Drop),
			rule(nft.Match{Field: nft.MetaMark, Mask: 0x4000, Value: 0x4000}, nft.SetMark{Xor: 0x4000}, nft.SetMark{Or: 1}, nft.Masquerade{}),
			rule(nft.Match{Field: nft.CTOriginalProtoDst, Op: nft.NotEqual, Value: nft.PortData(80)}, nft.Match{Field: nft.IPDaddr, Op: nft.NotEqual, Value: mustPrefix("10.0.0.0/8")}, nft.Goto("other")),
			rule(nft.InSet{Key: nft.Concat{nft.IPSaddr}, Op: nft.NotEqual, Set: "clients"}, nft.Reject{Family: nft.FamilyIP}),
			rule(nft.Match{Field: nft.FibDaddrType, Value: nft.IntegerData(2)}, nft.Match{Field: nft.MetaMark, Value: nft.IntegerData(255)}, nft.Vmap{Key: nft.Concat{nft.MetaMark, nft.MetaIifname}, Map: "verdicts"}),
			rule(nft.DNAT{Family: nft.FamilyIP, Key: nft.Concat{nft.IPSaddr, nft.JHash{Field: nft.IPSaddr, Mod: 3, Seed: 9}}, Map: "m"}),
			rule(nft.Update{Map: "clients", Key: nft.Concat{nft.IPSaddr}, Data: nft.Concat{nft.IPDaddr, nft.CTReplyProtoSrc}, Timeout: 3*24*time.Hour + 1500*time.Millisecond}),
		}}, {Name: "other"}},
	}
}

func TestDumpOfEverything(t *testing.T) {
	var b bytes.Buffer
	want := []*nft.Table{everything()}
	counts := Counts{{nft.FamilyIP, "counted"}: {"\x0b\x00\x00\x01": {Packets: 3, Bytes: math.MaxUint64}, "\x0b\x00\x00\x02": {}}}
	if err := writeDump(&b, document{Origin: "kernel"}, want, counts); err != nil {
		t.Fatal(err)
	}
	_, got, gotCounts, err := readDump(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(texts(want), texts(got)); diff != "" {
		t.Errorf("-written +read:\n%s", diff)
	}
	if diff := cmp.Diff(counts, gotCounts); diff != "" {
		t.Errorf("counts, -written +read:\n%s", diff)
	}
	if diff := cmp.Diff(fmt.Sprint(want[0].Kernel.Objects), fmt.Sprint(got[0].Kernel.Objects)); diff != "" {
		t.Errorf("objects, -written +read:\n%s", diff)
	}
	if got[0].Kernel.OwnerPort != 7 {
		t.Errorf("owner port %d", got[0].Kernel.OwnerPort)
	}
}

func TestReadRefuses(t *testing.T) {
	var b bytes.Buffer
	if err := writeDump(&b, document{}, []*nft.Table{everything()}, nil); err != nil {
		t.Fatal(err)
	}
	good := b.String()
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", "the dump is empty"},
		{"half a dump", good[:len(good)/2], "the dump is truncated: it ends in the middle"},
		{"nft's listing", "table ip kube-proxy {\n}\n", "this is no dump: at byte 2: invalid character 'a' in literal true (expecting 'r')"},
		{"other JSON", `{"nftables": []}`, "this is no dump of ruledump's: it has no apiVersion; ruledump.nftproxy/v1 Ruleset is wanted, as `ruledump live -o json` writes it"},
		{"a newer version", strings.Replace(good, "/v1", "/v2", 1), `the dump has apiVersion "ruledump.nftproxy/v2", and this ruledump reads ruledump.nftproxy/v1: use the ruledump of the version that wrote it`},
		{"a newer version of another shape", `{"apiVersion": "ruledump.nftproxy/v9", "kind": "Ruleset", "tables": "none"}`, `the dump has apiVersion "ruledump.nftproxy/v9", and this ruledump reads ruledump.nftproxy/v1: use the ruledump of the version that wrote it`},
		{"another kind", strings.Replace(good, "Ruleset", "Services", 1), "the document is of kind \"Services\", and a dump is of kind Ruleset, as `ruledump live -o json` writes it"},
		{"two dumps", good + good, "there is more after the end of the dump"},
		{"another family", strings.Replace(good, `"family": "ip"`, `"family": "inet"`, 1), "table inet kube-proxy: the family is not ip or ip6"},
		{"a rule of nobody's", strings.Replace(good, "meta mark set meta mark | 0x00000001", "tproxy to :80", 1), `table ip kube-proxy: chain base: rule "meta mark \u0026 0x00004000 == 0x00004000 meta mark set meta mark ^ 0x00004000 tproxy to :80 masquerade fully-random": "tproxy to :80 masquerade fully-random" is no field that this version of ruledump knows`},
		{"an address of another family", strings.Replace(good, `"key": "10.0.0.1"`, `"key": "fd00::1"`, 1), `table ip kube-proxy: set clients: element "fd00::1": address fd00::1 is of another family than ip saddr`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, _, err := readDump(strings.NewReader(tt.text))
			want := strings.ReplaceAll(tt.want, `\u0026`, "&")
			if err == nil || err.Error() != want {
				t.Errorf("error %v\nwant  %s", err, want)
			}
		})
	}
	t.Run("every truncation", func(t *testing.T) {
		for n := 1; n < len(strings.TrimRight(good, "\n")); n++ {
			if _, _, _, err := readDump(strings.NewReader(good[:n])); !errors.Is(err, ErrTruncated) {
				t.Fatalf("%d of %d bytes: %v", n, len(good), err)
			}
		}
	})
}

// Whatever a dump holds, it is read or refused, and what was read can be printed, written and read again.
func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	if err := writeDump(&b, document{Origin: "kernel"}, []*nft.Table{everything()}, nil); err != nil {
		f.Fatal(err)
	}
	// Small seeds: what is large is mutated slowly.
	for _, part := range []string{"sets", "maps", "chains"} {
		f.Add([]byte(reduced(f, b.Bytes(), part)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, tables, counts, err := readDump(bytes.NewReader(data))
		if err != nil {
			return
		}
		before := texts(tables)
		var again bytes.Buffer
		if err := writeDump(&again, *d, tables, counts); err != nil {
			t.Fatal(err)
		}
		_, reread, recounted, err := readDump(&again)
		if err != nil {
			t.Fatalf("what was read cannot be read again: %v\n%s", err, strings.Join(before, "\n"))
		}
		if diff := cmp.Diff(counts, recounted); diff != "" {
			t.Errorf("counts, -read +reread:\n%s", diff)
		}
		if diff := cmp.Diff(before, texts(reread)); diff != "" {
			t.Errorf("-read +reread:\n%s", diff)
		}
	})
}

func mustPrefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// reduced returns a dump with one part of its first table only.
func reduced(tb testing.TB, data []byte, part string) string {
	var document map[string]any
	if err := json.Unmarshal(data, &document); err != nil {
		tb.Fatal(err)
	}
	table := document["tables"].([]any)[0].(map[string]any)
	document["tables"] = []any{map[string]any{"family": "ip", "name": "t", part: table[part]}}
	out, err := json.Marshal(document)
	if err != nil {
		tb.Fatal(err)
	}
	return string(out)
}
