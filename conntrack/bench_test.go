package conntrack

import (
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
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

// BenchmarkStaleFlows searches a table of 200,000 entries.
func BenchmarkStaleFlows(b *testing.B) {
	c, table := newTable(b)
	fill(b, table)
	none := func(Flow) bool { return false }
	search := func(b *testing.B, stale func(Flow) bool) (stats Stats) {
		b.Helper()
		stats, err := c.DeleteFlows(IPv4, unix.IPPROTO_UDP, stale)
		if err != nil || stats.Listed != manyUDP {
			b.Fatalf("%+v, %v; want %d listed", stats, err, manyUDP)
		}
		return stats
	}
	b.Run("the kernel picks the protocol", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			search(b, none)
		}
	})
	b.Run("the kernel lists the family whole", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			listed := 0
			if err := c.list(request(msgGet, netlink.Dump, IPv4, nil), func(entry) { listed++ }); err != nil || listed != manyTCP+manyUDP {
				b.Fatalf("listed %d, %v", listed, err)
			}
		}
	})
	b.Run("the kernel lists the family whole, ti-mo decodes", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			flows, err := table.DumpFilter(conntrack.NewFilter().Family(netfilter.ProtoIPv4), nil)
			if err != nil || len(flows) != manyTCP+manyUDP {
				b.Fatalf("listed %d, %v", len(flows), err)
			}
		}
	})
	b.Run("a tenth is stale", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			stats := search(b, func(f Flow) bool { return f.Server == server(0) })
			b.StopTimer()
			if stats.Deleted != manyUDP/10 {
				b.Fatalf("%+v, want %d deleted", stats, manyUDP/10)
			}
			for i := range manyUDP / 10 {
				f := dns4
				f.Source, f.Server = client(10*i), server(0)
				add(b, table, f)
			}
			b.StartTimer()
		}
	})
}
