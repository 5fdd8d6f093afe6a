package directreturn

import (
	"bufio"
	"io"
	"slices"
	"testing"
	"time"
)

// BenchmarkWays measures direct return and policy Cluster in turns, in one network: the time from the first packet of a
// UDP flow to its answer, and how fast a pod sends over TCP.
func BenchmarkWays(b *testing.B) {
	f := newFabric(b, false)
	f.startPods(b)
	f.startRouter(b)
	f.announce(b, 1, 2, 3, 4)
	f.start(b, serving(2, 3, 4), 1, 2, 3, 4)
	f.awaitHops(b, 1, 2, 3, 4)
	const turns, streams = 1000, 8
	first := map[string][]time.Duration{}
	sending := map[string]time.Duration{}
	rounds := 0
	for b.Loop() {
		rounds++
		for turn := range turns {
			for _, s := range services {
				c := &connection{network: "udp", from: clientAddr(families[turn%2], turn%clients)}
				must(b, f.client.Do(func() error { return c.dial(s) }))
				begin := time.Now()
				_, _, err := c.ask()
				must(b, err)
				first[s.name] = append(first[s.name], time.Since(begin))
				c.Close()
			}
		}
		for stream := range streams {
			for _, s := range services {
				c := &connection{network: "tcp", from: clientAddr(families[stream%2], stream)}
				must(b, f.client.Do(func() error { return c.dial(s) }))
				begin := time.Now()
				_, err := io.WriteString(c, "bulk\n")
				must(b, err)
				_, err = io.CopyN(io.Discard, bufio.NewReaderSize(c, 1<<20), bulk)
				must(b, err)
				sending[s.name] += time.Since(begin)
				c.Close()
			}
		}
	}
	for _, s := range services {
		slices.Sort(first[s.name])
		b.ReportMetric(float64(first[s.name][len(first[s.name])/2].Microseconds()), s.name+"-first-us")
		b.ReportMetric(float64(rounds*streams*bulk)/1e6/sending[s.name].Seconds(), s.name+"-MB/s")
	}
}
