// Command performance measures a Backend with different numbers of Services, in network namespaces that it makes, and
// draws the chart of docs/measurements-kube-proxy.md, with what hack/compare measured of kube-proxy beside. Its benchmark
// measures the way of a packet through the rules. It needs root.
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/hack/compare/figures"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
)

func main() {
	output := flag.String("o", "docs/performance.svg", "the `file` to write the chart to")
	repeat := flag.Int("repeat", 3, "how often to measure each number of Services")
	beside := flag.String("beside", "", "a `file` that hack/compare has written (--figures), for the lines of kube-proxy")
	flag.Parse()
	if err := run(*output, *beside, *repeat); err != nil {
		fmt.Fprintln(os.Stderr, "performance:", err)
		os.Exit(1)
	}
}

func run(output, beside string, repeat int) (err error) {
	var compared figures.Run
	if beside != "" {
		if compared, err = figures.Read(beside); err != nil {
			return err
		}
	}
	var points []point
	for _, n := range []int{1000, 2000, 5000, 10_000, 20_000, 44_000, 100_000} {
		best, err := measure(n)
		for i := 1; i < repeat && err == nil; i++ {
			var again point
			again, err = measure(n)
			best = best.better(again)
		}
		if err != nil {
			return err
		}
		fmt.Printf("%6d Services: first Sync %v (the kernel's part %v), one more Service %v, heap %.1f MB\n",
			n, best.firstSync.Round(time.Millisecond/10), best.kernel.Round(time.Millisecond/10), best.oneChange.Round(time.Microsecond), best.heap/1e6)
		points = append(points, best)
	}
	return os.WriteFile(output, []byte(charts(points, compared)), 0o644)
}

// point has the measurements with one number of Services.
type point struct {
	services int
	// firstSync is the time from objects in memory until the kernel has committed into an empty namespace, and kernel the
	// kernel's part of it.
	firstSync, kernel time.Duration
	// oneChange is the median time of a Sync with one more Service.
	oneChange time.Duration
	// heap is the number of bytes that the model and the backend hold after a garbage collection.
	heap float64
}

// better returns the smaller figures of two: other users of the machine only make them larger.
func (p point) better(o point) point {
	return point{p.services, min(p.firstSync, o.firstSync), min(p.kernel, o.kernel), min(p.oneChange, o.oneChange), min(p.heap, o.heap)}
}

// measure measures n Services in a namespace of its own.
func measure(n int) (p point, err error) {
	namespace, err := netns.New()
	if err != nil {
		return p, err
	}
	defer namespace.Close()
	conn, err := nft.Dial(nft.Config{NetNS: namespace.FD()})
	if err != nil {
		return p, err
	}
	defer conn.Close()
	p.services = n
	backend, err := proxy.NewBackend(conn, compiler.Default(), proxy.Hooks{OnCommit: func(s nft.CommitStats) { p.kernel = s.Kernel }})
	if err != nil {
		return p, err
	}
	defer backend.Close()

	before := heap()
	ports := services(n)
	ctx, begin := context.Background(), time.Now()
	if err := backend.Sync(ctx, ports); err != nil {
		return p, err
	}
	p.firstSync = time.Since(begin)
	first := p.kernel
	p.heap = heap() - before
	runtime.KeepAlive(ports)

	var changes []time.Duration
	for i := range 50 {
		begin := time.Now()
		if err := backend.Sync(ctx, change(service(n+i))); err != nil {
			return p, err
		}
		changes = append(changes, time.Since(begin))
	}
	slices.Sort(changes)
	p.kernel, p.oneChange = first, changes[len(changes)/2]
	return p, nil
}

// heap returns how many bytes are in use after a garbage collection.
func heap() float64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

const servicePort, endpointPort = 80, 8080

// numbered returns the i-th address from first on.
func numbered(first string, i int) netip.Addr {
	b := netip.MustParseAddr(first).As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(i))
	return netip.AddrFrom4(b)
}

// service returns the i-th UDP Service: a ClusterIP and two endpoints on another node.
func service(i int) *model.ServicePort {
	p := &model.ServicePort{
		ID:        model.PortID{Namespace: "default", Service: fmt.Sprintf("service-%d", i), Protocol: model.UDP, Family: model.IPv4},
		ClusterIP: numbered("10.96.0.0", i), Port: servicePort,
	}
	for slot := range 2 {
		p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(numbered("10.128.0.0", 2*i+slot), endpointPort), Remote: true})
	}
	return p
}

// services returns a model of n Services.
func services(n int) *model.Changes {
	changes := &model.Changes{Full: true, Ports: make(map[model.PortID]*model.ServicePort, n), Node: &model.Node{Name: "node"},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, ServiceCIDRsChanged: true}
	for i := range n {
		p := service(i)
		changes.Ports[p.ID] = p
	}
	return changes
}

// change returns the change of one Service.
func change(p *model.ServicePort) *model.Changes {
	return &model.Changes{Ports: map[model.PortID]*model.ServicePort{p.ID: p}}
}
