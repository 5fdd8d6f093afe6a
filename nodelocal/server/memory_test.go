package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nftproxy/nftproxy/nodelocal/server"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
	"github.com/nftproxy/nftproxy/tracker"
)

// testServerForgetsPortsOfOneNode asks for the states of all nodes of a Service that has an endpoint on each: the port
// differs from node to node.
func testServerForgetsPortsOfOneNode(t *testing.T) {
	const nodes = 500
	daemonSet := slice(0, 1, 0)
	for i := range nodes {
		daemonSet.Endpoints = append(daemonSet.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.1.%d.%d", i>>8, i&255)}, NodeName: new(nodeName(i)),
		})
	}
	tr := servingTracker(10)
	tr.SetService(service(0))
	tr.SetEndpointSlice(daemonSet)
	tr.Synced()
	client := dial(t, newTestServer(t, tr, server.Options{}).address)
	ctx := patient(t)
	get := func(i int) (bytes int64) {
		stream, err := client.Get(ctx, &nodelocalv1.GetRequest{Node: nodeName(i)})
		if err != nil {
			t.Fatal(err)
		}
		for {
			update, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return bytes
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, port := range update.Set {
				bytes += int64(proto.Size(port))
			}
		}
	}
	get(0)
	before := heap()
	var sent int64
	for change := range 2 {
		changed := daemonSet.DeepCopy()
		changed.Endpoints = changed.Endpoints[change:]
		tr.SetEndpointSlice(changed)
		for i := range nodes {
			sent += get(i)
		}
	}
	if kept := heap() - before; kept > sent/10 {
		t.Errorf("%d MB were sent, and the server keeps %d MB", sent>>20, kept>>20)
	}
}

// serveTCP serves without TLS, so that clients can be several peers by their address.
func serveTCP(t *testing.T, tr *tracker.Tracker, options server.Options) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, tr, listener, options)
	return listener.Addr().String()
}

// watchFrom begins to watch over a connection of its own, whose window is small: what the
// client does not read stays with the server.
func watchFrom(t *testing.T, address, source string, i int) grpc.ServerStreamingClient[nodelocalv1.Update] {
	t.Helper()
	from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	client := dial(t, address, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10),
		grpc.WithContextDialer(func(ctx context.Context, target string) (net.Conn, error) {
			return from.DialContext(ctx, "tcp", target)
		}))
	stream, err := client.Watch(patient(t), &nodelocalv1.WatchRequest{Node: nodeName(i)})
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// testServerBoundsFullStates has one peer with many clients that never read. They take 11 MB, and 117 MB without a bound.
func testServerBoundsFullStates(t *testing.T) {
	const services = 3000
	tr := servingTracker(10)
	fill(tr, services, 10)
	tr.Synced()
	address := serveTCP(t, tr, server.Options{SendTimeout: time.Hour, BatchMemory: 40 << 20})
	before := heap()
	var peak int64
	const stalled = 100
	for i := range stalled {
		watchFrom(t, address, "127.0.0.2", i)
	}
	t.Run("the clients of other peers do not wait", func(t *testing.T) {
		for i := range 5 {
			stream := watchFrom(t, address, "127.0.0.3", i)
			ports := 0
			for synced := false; !synced; {
				update, err := stream.Recv()
				if err != nil {
					t.Fatal(err)
				}
				ports, synced = ports+len(update.Set), update.Sync != nil
			}
			if ports != services {
				t.Errorf("%d ports came, want %d", ports, services)
			}
		}
	})
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		peak = max(peak, heap()-before)
	}
	if peak > 50<<20 {
		t.Errorf("%d clients that do not read take %d MB", stalled, peak>>20)
	}
	t.Logf("%d clients that do not read take %d MB", stalled, peak>>20)
}

// testServerSendsOneByOne gives a server memory for one full state.
func testServerSendsOneByOne(t *testing.T) {
	tr := servingTracker(10)
	fill(tr, 1000, 5)
	tr.Synced()
	b := newTestServer(t, tr, server.Options{BatchMemory: 1})
	view := tr.View("node-1", 0)
	defer view.Close()
	want, _ := view.Take()
	var followers []*backend
	for range 20 {
		followers = append(followers, &backend{})
		follow(t, b.address, "node-1", followers[len(followers)-1])
	}
	for _, f := range followers {
		eventually(t, func() string { return f.difference(want) })
	}
}

// testServerDoesNotWaitForSlowReaders has a client that takes each part long before SendTimeout,
// and more time than the whole batch may take.
func testServerDoesNotWaitForSlowReaders(t *testing.T) {
	t.Parallel()
	tr := servingTracker(10)
	fill(tr, 2000, 100) // at least four parts
	tr.Synced()
	var refused refusals
	address := serveTCP(t, tr, server.Options{SendTimeout: time.Second, LeastRate: 1 << 40, Hooks: server.Hooks{OnRefused: refused.add}})
	stream := watchFrom(t, address, "127.0.0.2", 0)
	for {
		update, err := stream.Recv()
		if err != nil {
			break
		}
		if update.Sync != nil {
			t.Fatal("the slow client was sent the whole batch")
		}
		time.Sleep(400 * time.Millisecond)
	}
	if n := refused.counted(server.RefusedStalled); n != 1 {
		t.Errorf("%d clients count as stalled, want 1", n)
	}
}

// testServerTellsWhoWaits gives a server memory for one full state, which a client that does not read has.
func testServerTellsWhoWaits(t *testing.T) {
	tr := servingTracker(10)
	fill(tr, 1500, 100) // several parts
	tr.Synced()
	var refused refusals
	address := serveTCP(t, tr, server.Options{BatchMemory: 1, SendTimeout: time.Hour, BatchWait: 10 * time.Millisecond, Hooks: server.Hooks{OnRefused: refused.add}})
	if _, err := watchFrom(t, address, "127.0.0.2", 0).Recv(); err != nil {
		t.Fatal(err)
	}
	_, err := watchFrom(t, address, "127.0.0.3", 1).Recv()
	expectCode(t, err, codes.Unavailable, "sending full states to others")
	if n := refused.counted(server.RefusedBusy); n != 1 {
		t.Errorf("%d calls count as refused for a busy server, want 1", n)
	}
}
