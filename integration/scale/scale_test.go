package scale

import (
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
)

// The size of the cluster. docs/measurements.md has runs of several.
var (
	proxies   = flag.Int("proxies", 100, "how many proxies there are")
	services  = flag.Int("services", 1000, "how many Services there are")
	endpoints = flag.Int("endpoints", 10, "how many endpoints each Service has")
	away      = flag.Duration("away", 10*time.Second, "how long the API server is away in an outage")
)

// fixture is an API server, and the proxies that follow it.
type fixture struct {
	server *apiservertest.Server
	// clients are the processes that the API server serves, hearers the one that knows what reached the proxies.
	clients, hearers *roleProcess
	// watches is the number of watches of EndpointSlices.
	watches int
}

// forBoth runs a benchmark with a source for each proxy, and with one server for all.
func forBoth(b *testing.B, run func(*testing.B, fixture)) {
	for _, name := range []string{"informers", "server"} {
		b.Run(fmt.Sprintf("%s/proxies=%d/services=%d/endpoints=%d", name, *proxies, *services, *endpoints), func(b *testing.B) {
			s := apiservertest.Start(b, apiservertest.Options{})
			fill(b, s, *services, *endpoints, *proxies)
			kubeconfig := filepath.Join(b.TempDir(), "kubeconfig")
			if err := s.WriteKubeconfig(kubeconfig); err != nil {
				b.Fatal(err)
			}
			empty, cpu, begin := heap(), process.ProcessorTime(b), time.Now()
			f := fixture{server: s, watches: 1}
			if name == "informers" {
				f.clients = start(b, role{name: name, proxies: *proxies, kubeconfig: kubeconfig})
				f.hearers, f.watches = f.clients, *proxies
			} else {
				socket := "unix://" + filepath.Join(private.Dir(b), "s")
				f.clients = start(b, role{name: name, kubeconfig: kubeconfig, socket: socket})
				f.hearers = start(b, role{name: "watchers", proxies: *proxies, socket: socket})
			}
			took := time.Since(begin)
			used, sent, kept := process.ProcessorTime(b)-cpu, s.Sent(), heap()
			watches := s.Watches("services") + s.Watches("endpointslices") + s.Watches("nodes") + s.Watches("servicecidrs")
			run(b, f)
			// After the loop, which forgets what was reported before it.
			b.ReportMetric(took.Seconds(), "s-start")
			b.ReportMetric(float64(sent)/1e6, "MB-start")
			b.ReportMetric(used.Seconds(), "s-cpu-start")
			b.ReportMetric((float64(kept)-float64(empty))/1e6, "MB-kept")
			b.ReportMetric(float64(watches), "watches")
		})
	}
}

// BenchmarkEndpointChange changes one endpoint of a Service at a time.
func BenchmarkEndpointChange(b *testing.B) {
	forBoth(b, func(b *testing.B, f fixture) {
		sent, cpu, theirs := f.server.Sent(), process.ProcessorTime(b), f.clients.processorTime(b)
		var p50, p99, last time.Duration
		n := 0
		for b.Loop() {
			n++
			s := slice(n%*services, *endpoints, n / *services % 2 == 1)
			t50, t99, tLast := f.hearers.change(b, func() {
				lab.Update(b, f.server, s)
			})
			p50, p99, last = p50+t50, p99+t99, last+tLast
			time.Sleep(60 * time.Millisecond) // longer than the least interval of a stream
		}
		each := func(total float64, unit string) { b.ReportMetric(total/float64(n), unit) }
		each(float64(f.server.Sent()-sent)/1e3, "kB/change")
		each(float64((process.ProcessorTime(b)-cpu).Microseconds())/1e3, "ms-cpu/change")
		each(float64((f.clients.processorTime(b)-theirs).Microseconds())/1e3, "ms-cpu-clients/change")
		each(float64(p50.Microseconds())/1e3, "ms-p50")
		each(float64(p99.Microseconds())/1e3, "ms-p99")
		each(float64(last.Microseconds())/1e3, "ms-last")
	})
}

// BenchmarkOutage has the API server go away and come back. Either it knows still what happened since, or it has
// forgotten it, as after an outage of more than five minutes, and everything is listed again.
func BenchmarkOutage(b *testing.B) {
	for _, forgets := range []bool{false, true} {
		name := "history=kept"
		if forgets {
			name = "history=lost"
		}
		b.Run(name, func(b *testing.B) {
			forBoth(b, func(b *testing.B, f fixture) {
				for b.Loop() {
					outage(b, f, forgets)
				}
			})
		})
	}
}

func outage(b *testing.B, f fixture, forgets bool) {
	f.server.Stop()
	for f.server.Watches("endpointslices") > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	if forgets {
		// Compaction leaves out the last revision.
		lab.Update(b, f.server, slice(0, *endpoints, false))
		f.server.Compact()
	}
	time.Sleep(*away)
	sent, cpu, begin := f.server.Sent(), process.ProcessorTime(b), time.Now()
	if err := f.server.Resume(); err != nil {
		b.Fatal(err)
	}
	const tick = 100 * time.Millisecond
	var half, all time.Duration
	var last []int64 // what was sent at the last ticks
	peak := int64(0)
	for all == 0 {
		time.Sleep(tick)
		last = append(last, f.server.Sent())
		if n := len(last); n > 10 {
			peak = max(peak, last[n-1]-last[n-11])
		}
		switch n := f.server.Watches("endpointslices"); {
		case n >= f.watches:
			all = time.Since(begin)
		case 2*n >= f.watches && half == 0:
			half = time.Since(begin)
		}
	}
	// A watch counts when it begins. What it sends first is under way. Idle connections have pings.
	const pings = 100_000
	for before := int64(0); f.server.Sent()-before > pings; time.Sleep(time.Second) {
		before = f.server.Sent()
	}
	if half == 0 {
		half = all
	}
	b.ReportMetric(half.Seconds(), "s-until-half-are-back")
	b.ReportMetric(all.Seconds(), "s-until-all-are-back")
	b.ReportMetric(float64(f.server.Sent()-sent)/1e6, "MB/outage")
	b.ReportMetric(float64(peak)/1e6, "MB-in-the-worst-second")
	b.ReportMetric((process.ProcessorTime(b) - cpu).Seconds(), "s-cpu/outage")
}
