package server_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"github.com/nftproxy/nftproxy/internal/testkit/watchers"
	"github.com/nftproxy/nftproxy/nodelocal/server"
)

// BenchmarkWatchers has 1,000 nodes watch 10,000 Services × 10 endpoints over a unix socket, each with a connection of
// its own, and changes one endpoint at a time. It reports how long the median, the 99th percentile and the last watcher
// wait for a change (p50, p99), the processor time of server and watchers together for each change and watcher, and the
// heap for each watcher, both sides together. The watchers keep nothing, and decode no more than where a batch ends.
func BenchmarkWatchers(b *testing.B) {
	for _, nodes := range []int{100, 1000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) { benchmarkWatchers(b, nodes, 10_000, 10) })
	}
}

func benchmarkWatchers(b *testing.B, nodes, services, endpoints int) {
	tr := servingTracker(1000)
	fill(tr, services, endpoints)
	tr.Synced()
	s := newTestServer(b, tr, server.Options{})
	empty := heap()
	arrivals := make(chan time.Time, nodes)
	start := time.Now()
	if err := watchers.Start(b.Context(), s.address, nodes, nodeName, func(int) { arrivals <- time.Now() }); err != nil {
		b.Fatal(err)
	}
	started, kept := time.Since(start), heap()-empty
	var waits []time.Duration
	cpu := process.ProcessorTime(b)
	n := 0
	for b.Loop() {
		n++
		changed := time.Now()
		tr.SetEndpointSlice(slice(n%services, endpoints-n/services%2-1, n))
		for range nodes {
			waits = append(waits, (<-arrivals).Sub(changed))
		}
		time.Sleep(60 * time.Millisecond) // longer than the least interval of a stream
	}
	cpu = process.ProcessorTime(b) - cpu
	b.ReportMetric(started.Seconds(), "s-until-all-watch")
	b.ReportMetric(float64(kept)/float64(nodes)/1e3, "kB-heap/watcher")
	slices.Sort(waits)
	b.ReportMetric(float64(waits[len(waits)/2].Microseconds())/1e3, "ms-p50")
	b.ReportMetric(float64(waits[len(waits)*99/100].Microseconds())/1e3, "ms-p99")
	b.ReportMetric(float64(cpu.Microseconds())/float64(n*nodes), "µs-cpu/change/watcher")
}
