package scale

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/watchers"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	"github.com/nftproxy/nftproxy/source/apiserver"
	"github.com/nftproxy/nftproxy/tracker"
)

// role is the task of a process of its own. The process prints "ready" when all of its proxies have everything. After
// each line that it reads it prints "go", and then, once a change has reached all proxies, the times at which it did:
// for the median, the 99th percentile and the last of them, in nanoseconds since 1970.
type role struct {
	name       string
	proxies    int
	kubeconfig string
	socket     string
}

// atOnce bounds the proxies that begin at the same time.
const atOnce = 16

// run does what the role is for until stdin ends.
func (r role) run() error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var err error
	heard := newArrivals(r.proxies)
	switch r.name {
	case "informers":
		err = r.inform(ctx, heard)
	case "server":
		err = r.serve(ctx)
	case "watchers":
		err = watchers.Start(ctx, r.socket, r.proxies, nodeName, heard.note)
	default:
		err = fmt.Errorf("no role %q", r.name)
	}
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		heard.begin()
		fmt.Println("go")
		times := heard.all()
		fmt.Println(times[len(times)/2].UnixNano(), times[len(times)*99/100].UnixNano(), times[len(times)-1].UnixNano())
	}
	return nil
}

// inform runs a source for each proxy, as a proxy with informers does. What it hears is not kept.
func (r role) inform(ctx context.Context, heard *arrivals) error {
	gate := make(chan struct{}, atOnce)
	var synced sync.WaitGroup
	for i := range r.proxies {
		source, err := apiserver.New(apiserver.Config{Kubeconfig: r.kubeconfig, NodeName: nodeName(i)})
		if err != nil {
			return err
		}
		gate <- struct{}{}
		synced.Add(1)
		sink := &ear{arrivals: heard, proxy: i, synced: func() { <-gate; synced.Done() }}
		go func() { _ = source.Run(ctx, sink) }() // always nil
	}
	synced.Wait()
	return nil
}

// ear is the sink of one proxy.
type ear struct {
	*arrivals
	proxy  int
	synced func()
}

func (e *ear) SetEndpointSlice(*discoveryv1.EndpointSlice) { e.note(e.proxy) }
func (e *ear) Synced()                                     { e.synced() }

func (*ear) SetService(*corev1.Service)               {}
func (*ear) DeleteService(string, string)             {}
func (*ear) DeleteEndpointSlice(string, string)       {}
func (*ear) SetNode(*corev1.Node)                     {}
func (*ear) DeleteNode(string)                        {}
func (*ear) SetServiceCIDR(*networkingv1.ServiceCIDR) {}
func (*ear) DeleteServiceCIDR(string)                 {}
func (*ear) Waiting(string)                           {}

// serve is the server, as kube-proxy node-local-server is.
func (r role) serve(ctx context.Context) error {
	source, err := apiserver.New(apiserver.Config{Kubeconfig: r.kubeconfig, EveryNode: true, Details: true})
	if err != nil {
		return err
	}
	t := tracker.New(tracker.Options{EveryNode: true, History: 10_000, Details: true})
	listener, err := server.Listen(ctx, r.socket, false)
	if err != nil {
		return err
	}
	go func() { _ = source.Run(ctx, t) }() // always nil
	go func() { _ = server.New(t, server.Options{}).Serve(ctx, listener) }()
	<-t.Ready()
	return nil
}

// arrivals has the time at which a change first reached each proxy.
type arrivals struct {
	waiting []atomic.Bool
	times   chan time.Time
}

func newArrivals(proxies int) *arrivals {
	return &arrivals{make([]atomic.Bool, proxies), make(chan time.Time, proxies)}
}

// begin awaits a change at each proxy.
func (a *arrivals) begin() {
	for i := range a.waiting {
		a.waiting[i].Store(true)
	}
}

// note notes that something reached a proxy.
func (a *arrivals) note(proxy int) {
	if a.waiting[proxy].CompareAndSwap(true, false) {
		a.times <- time.Now()
	}
}

// all returns when the change reached each proxy, in order.
func (a *arrivals) all() []time.Time {
	times := make([]time.Time, len(a.waiting))
	for i := range times {
		times[i] = <-a.times
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}
