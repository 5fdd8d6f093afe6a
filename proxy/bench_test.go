package proxy

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// manyEndpoints returns Services with a ClusterIP and endpoints of which one in a hundred is on
// this node, and the others elsewhere or, without placed, anywhere.
func manyEndpoints(services, endpoints int, placed bool) *model.Changes {
	changes := &model.Changes{Full: true, Ports: make(map[model.PortID]*model.ServicePort, services), Node: &model.Node{Name: "node-1"}, ServiceCIDRsChanged: true}
	at := netip.MustParseAddr("10.128.0.0")
	for i := range services {
		p := &model.ServicePort{
			ID:        model.PortID{Namespace: "default", Service: fmt.Sprintf("service-%d", i), Protocol: model.TCP, Family: model.IPv4},
			ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80,
		}
		for slot := range endpoints {
			at = at.Next()
			local := (i*endpoints+slot)%100 == 0
			p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(at, 8080), Local: placed && local, Remote: placed && !local})
		}
		changes.Ports[p.ID] = p
	}
	return changes
}

// BenchmarkFirstSync shows what it is worth to know on which node an endpoint is: the set hairpin then
// holds the few on this one.
func BenchmarkFirstSync(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{10_000, 2}, {5_000, 50}} {
		for _, placed := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dx%d/endpoints with a node %v", size.services, size.endpoints, placed), func(b *testing.B) {
				changes := manyEndpoints(size.services, size.endpoints, placed)
				// Other time says little on a busy machine.
				var processor, kernel time.Duration
				elements := 0
				for b.Loop() {
					b.StopTimer()
					conn := namespaceConn(b)
					backend, err := NewBackend(conn, compiler.Default(), Hooks{OnCommit: func(s nft.Stats) { kernel += s.Kernel; elements = s.Elements }})
					if err != nil {
						b.Fatal(err)
					}
					begin := processorTime(b)
					b.StartTimer()
					if err := backend.Sync(b.Context(), changes); err != nil {
						b.Fatal(err)
					}
					processor += processorTime(b) - begin
				}
				b.ReportMetric(processor.Seconds()*1e3/float64(b.N), "cpu-ms/op")
				b.ReportMetric(kernel.Seconds()*1e3/float64(b.N), "kernel-ms/op")
				b.ReportMetric(float64(elements), "elements")
			})
		}
	}
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
