package server_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nftproxy/nftproxy/integration/procstat"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// BenchmarkWatchers has 1,000 nodes watch 10,000 Services × 10 endpoints over a unix socket, each with a connection of its own, and changes one
// endpoint at a time. It reports how long the median, the 99th percentile and the last watcher wait for a change (p50, p99), the processor time
// of server and watchers together for each change and watcher, and the heap for each watcher, both sides together. The
// watchers keep nothing, and decode no more than where a batch ends.
func BenchmarkWatchers(b *testing.B) {
	for _, watchers := range []int{100, 1000} {
		b.Run(fmt.Sprint(watchers), func(b *testing.B) { benchmarkWatchers(b, watchers, 10_000, 10) })
	}
}

func benchmarkWatchers(b *testing.B, watchers, services, endpoints int) {
	tr := servingTracker(1000)
	fill(tr, services, endpoints)
	tr.Synced()
	brain := newBrain(b, tr, server.Options{})
	empty := heap()
	arrivals := make(chan time.Time, watchers)
	var begun sync.WaitGroup
	start := time.Now()
	gate := make(chan struct{}, 8) // as many full states at once
	for i := range watchers {
		client := dial(b, brain.address, grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(skim{})))
		begun.Add(1)
		go func() {
			gate <- struct{}{}
			stream, err := client.Watch(b.Context(), &nodelocalv1.WatchRequest{Node: nodeName(i)})
			first := true
			for err == nil {
				var update *nodelocalv1.Update
				if update, err = stream.Recv(); err != nil || update.GetSync() == nil {
					continue
				}
				if first {
					first = false
					<-gate
					begun.Done()
					continue
				}
				arrivals <- time.Now()
			}
		}()
	}
	begun.Wait()
	started, kept := time.Since(start), heap()-empty
	var waits []time.Duration
	cpu := procstat.ProcessorTime(b)
	n := 0
	for b.Loop() {
		n++
		changed := time.Now()
		tr.SetEndpointSlice(slice(n%services, endpoints-n/services%2-1, n))
		for range watchers {
			waits = append(waits, (<-arrivals).Sub(changed))
		}
		time.Sleep(60 * time.Millisecond) // longer than the least interval of a stream
	}
	cpu = procstat.ProcessorTime(b) - cpu
	b.ReportMetric(started.Seconds(), "s-until-all-watch")
	b.ReportMetric(float64(kept)/float64(watchers)/1e3, "kB-heap/watcher")
	slices.Sort(waits)
	b.ReportMetric(float64(waits[len(waits)/2].Microseconds())/1e3, "ms-p50")
	b.ReportMetric(float64(waits[len(waits)*99/100].Microseconds())/1e3, "ms-p99")
	b.ReportMetric(float64(cpu.Microseconds())/float64(n*watchers), "µs-cpu/change/watcher")
}

// skim is a codec that decodes of an Update only whether it ends a batch.
type skim struct{}

func (skim) Name() string { return "proto" }

func (skim) Marshal(message any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2("proto").Marshal(message)
}

func (skim) Unmarshal(data mem.BufferSlice, message any) error {
	const sync = 6
	update := message.(*nodelocalv1.Update)
	for rest := data.Materialize(); len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if number == sync {
			update.Sync = &nodelocalv1.Sync{}
		}
		if n += protowire.ConsumeFieldValue(number, kind, rest[n:]); n > len(rest) || n < 0 {
			return errors.New("not a field")
		}
		rest = rest[n:]
	}
	return nil
}
