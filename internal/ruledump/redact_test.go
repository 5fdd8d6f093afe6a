package ruledump

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"pgregory.net/rapid"
)

func TestPseudonyms(t *testing.T) {
	p := NewPseudonyms()
	inCommon := func(a, b netip.Addr) (n int) {
		for n < a.BitLen() {
			prefix, err := a.Prefix(n + 1)
			if err != nil || !prefix.Contains(b) {
				break
			}
			n++
		}
		return n
	}
	t.Run("have as many bits in common as the addresses", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			length := rapid.SampledFrom([]int{4, 16}).Draw(t, "length")
			draw := func(label string) netip.Addr {
				b := rapid.SliceOfN(rapid.Byte(), length, length).Draw(t, label)
				b[0] = rapid.SampledFrom([]byte{10, 192, 198, 0xfd}).Draw(t, label+" begins") // pseudonyms of few others are walked on
				addr, _ := netip.AddrFromSlice(b)
				return addr
			}
			a, b := draw("a"), draw("b")
			if got, want := inCommon(p.Of(a), p.Of(b)), inCommon(a, b); want >= 8 && got != want || (a == b) != (p.Of(a) == p.Of(b)) {
				t.Fatalf("%s and %s have %d bits in common, their pseudonyms %s and %s %d", a, b, want, p.Of(a), p.Of(b), got)
			}
		})
	})
	t.Run("are one to one", func(t *testing.T) {
		seen := map[netip.Addr]bool{}
		for i := range 1 << 16 {
			seen[p.Of(netip.AddrFrom4([4]byte{byte(i >> 8), byte(i), 1, 1}))] = true
		}
		if len(seen) != 1<<16 {
			t.Errorf("%d of %d", len(seen), 1<<16)
		}
	})
	t.Run("are other addresses", func(t *testing.T) {
		for _, text := range []string{"10.0.0.1", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1"} {
			if addr := netip.MustParseAddr(text); p.Of(addr) == addr {
				t.Errorf("%s stays", text)
			}
		}
	})
	t.Run("stand in text", func(t *testing.T) {
		of := func(text string) string { return p.Of(netip.MustParseAddr(text)).String() }
		network := p.ofPrefix(mustPrefix("10.244.0.0/16")).String()
		for text, want := range map[string]string{
			"from 198.51.100.7:4000 to [fd00::1]:80/TCP": "from " + of("198.51.100.7") + ":4000 to [" + of("fd00::1") + "]:80/TCP",
			"clusterCIDR: 10.244.0.0/16":                 "clusterCIDR: " + network,
			"192.168.0.1/24, fd00:1::1/64":               of("192.168.0.1") + "/24, " + of("fd00:1::1") + "/64",
			"127.0.0.1:10249 0.0.0.0 ::1 255.255.255.0":  "127.0.0.1:10249 0.0.0.0 ::1 255.255.255.0",
			"dial fd00::1: no route, was fd00::1.":       "dial " + of("fd00::1") + ": no route, was " + of("fd00::1") + ".",
			`\n198.51.100.7\tfd00::1 %5Bfd00::1%5D`:      `\n` + of("198.51.100.7") + `\t` + of("fd00::1") + " %5B" + of("fd00::1") + "%5D",
			"a_198.51.100.7_b v198.51.100.7 ip:fd00::1":  "a_" + of("198.51.100.7") + "_b v" + of("198.51.100.7") + " ip:" + of("fd00::1"),
			"::ffff:198.51.100.7 ::ffff:c633:6407":       "::ffff:" + of("198.51.100.7") + " ::ffff:" + of("198.51.100.7"),
			"64:ff9b::198.51.100.7 2001:db8:0:1:2:3:4:5": of("64:ff9b::198.51.100.7") + " " + of("2001:db8:0:1:2:3:4:5"),
			"from 2001:db8:0:1:2:3:4:5:80":               "from " + of("2001:db8:0:1:2:3:4:5") + ":80",
			"fd00::/108: 10.244.0.0/16,":                 p.ofPrefix(mustPrefix("fd00::/108")).String() + ": " + network + ",",
			"03:00:00 v1.37.2 cache::add 300.1.1.1":      "03:00:00 v1.37.2 cache::add 300.1.1.1",
		} {
			if got := string(p.Text([]byte(text))); got != want {
				t.Errorf("%s\n got %s\nwant %s", text, got, want)
			}
		}
	})
}

// Redacted tables are the tables with pseudonyms, and nothing else.
func TestRedact(t *testing.T) {
	lines := func(tables []*nft.Table, edit func([]byte) []byte) (out []string) {
		for _, table := range tables {
			for line := range strings.Lines(table.String()) {
				out = append(out, strings.TrimRight(string(edit([]byte(line))), ",\n"))
			}
		}
		slices.Sort(out)
		return out
	}
	same := func(text []byte) []byte { return text }
	for _, c := range flows.Cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			written, err := FromManifests(c.ManifestsDir(t), Compilation{Node: lab.NodeName, Config: c.ConfigFile(t)})
			if err != nil {
				t.Fatal(err)
			}
			p, read := NewPseudonyms(), writeAndRead(t, written)
			redacted, err := read.Redact(p)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(lines(read.Tables, p.Text), lines(redacted.Tables, same)); diff != "" {
				t.Errorf("-pseudonyms in the text +redacted:\n%s", diff)
			}
			if len(redacted.Tables) > 0 && len(p.known) == 0 {
				t.Error("no address was replaced")
			}
		})
	}
	t.Run("refuses a range that is no prefix", func(t *testing.T) {
		ranges := &nft.Set{Name: "ranges", Key: nft.Concat{nft.IPSaddr}, Interval: true}
		ranges.Put(nft.Element{Key: "\x0a\x00\x00\x01", KeyEnd: "\x0a\x00\x00\x09"})
		table := &nft.Table{Family: nft.FamilyIP, Name: "kube-proxy", Sets: []*nft.Set{ranges}}
		s := writeAndRead(t, &Snapshot{Tables: []*nft.Table{table}})
		if _, err := s.Redact(NewPseudonyms()); err == nil || !strings.Contains(err.Error(), "a range of addresses is no prefix") {
			t.Errorf("error %v", err)
		}
	})
}
