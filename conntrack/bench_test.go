package conntrack

import (
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"github.com/nftproxy/nftproxy/model"
	"github.com/ti-mo/conntrack"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"
)

// The table of a busy node. The number must stay below nf_conntrack_max of the machine,
// which counts for each namespace.
const (
	manyTCP = 180_000
	manyUDP = 20_000
)

// fill makes many entries, of which those over UDP lead to ten servers in equal parts.
func fill(b *testing.B, table *conntrack.Conn) {
	b.Helper()
	for i := range manyTCP + manyUDP {
		f := web4
		if i < manyUDP {
			f = dns4
			f.Server = server(i % 10)
		}
		f.Source = client(i)
		add(b, table, f)
	}
}

func client(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 3, byte(i >> 14)}), uint16(1024+i&(1<<14-1)))
}

func server(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}), 5353)
}

// BenchmarkStaleFlows searches a table of 200,000 entries. All namespaces of a machine share
// one hash table, the whole of which a search walks through, so an empty one is the least it costs.
func BenchmarkStaleFlows(b *testing.B) {
	c, table := newTable(b)
	search := func(b *testing.B, stale func(Flow) bool, want Stats) {
		b.Helper()
		stats, err := c.DeleteFlows(b.Context(), model.IPv4, unix.IPPROTO_UDP, stale)
		if err != nil || stats.Listed != want.Listed || stats.Deleted != want.Deleted {
			b.Fatalf("%+v, %v; want %+v", stats, err, want)
		}
	}
	none := func(Flow) bool { return false }
	ofOneServer := func(f Flow) bool { return f.Server == server(0) }
	b.Run("the table is empty", func(b *testing.B) {
		measure(b, func() { search(b, none, Stats{}) }, nil)
	})
	fill(b, table)
	b.Run("the kernel picks the protocol", func(b *testing.B) {
		measure(b, func() { search(b, none, Stats{Listed: manyUDP}) }, nil)
	})
	b.Run("the kernel lists the whole family", func(b *testing.B) {
		measure(b, func() {
			s, err := c.open(0)
			if err != nil {
				b.Fatal(err)
			}
			defer s.nl.Close()
			listed := 0
			if err := s.list(request(msgGet, netlink.Dump, model.IPv4, nil), func(entry) bool { listed++; return true }); err != nil || listed != manyTCP+manyUDP {
				b.Fatalf("listed %d, %v", listed, err)
			}
		}, nil)
	})
	b.Run("the kernel lists the whole family, ti-mo decodes", func(b *testing.B) {
		measure(b, func() {
			flows, err := table.DumpFilter(conntrack.NewFilter().Family(netfilter.ProtoIPv4), nil)
			if err != nil || len(flows) != manyTCP+manyUDP {
				b.Fatalf("listed %d, %v", len(flows), err)
			}
		}, nil)
	})
	b.Run("the kernel picks the protocol, 2,000 are deleted", func(b *testing.B) {
		measure(b, func() { search(b, ofOneServer, Stats{Listed: manyUDP, Deleted: manyUDP / 10}) }, func() {
			for i := 0; i < manyUDP; i += 10 {
				f := dns4
				f.Source, f.Server = client(i), server(0)
				add(b, table, f)
			}
		})
	})
}

// measure reports processor time too, since other time says little on a busy machine.
func measure(b *testing.B, search, restore func()) {
	b.ReportAllocs()
	var spent time.Duration
	for b.Loop() {
		begin := process.ProcessorTime(b)
		search()
		spent += process.ProcessorTime(b) - begin
		if restore != nil {
			b.StopTimer()
			restore()
			b.StartTimer()
		}
	}
	b.ReportMetric(spent.Seconds()*1e3/float64(b.N), "cpu-ms/op")
}

func BenchmarkDecodeEntry(b *testing.B) {
	b.ReportAllocs()
	message := recorded(b, listedDNS4)
	for b.Loop() {
		if _, err := decodeEntry(message); err != nil {
			b.Fatal(err)
		}
	}
}
