package server_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodelocal"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	"github.com/nftproxy/nftproxy/tracker"
)

var sameAddrs = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

// service returns Service default/web-i with one TCP port.
func service(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("web-", i)},
		Spec: corev1.ServiceSpec{
			ClusterIPs: []string{fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255)},
			Ports:      []corev1.ServicePort{{Port: 80}},
		},
	}
}

// slice returns the slice of web-i with endpoints on the nodes node-FIRST and those after it.
func slice(i, endpoints, first int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprint("web-", i, "-1"),
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("web-", i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080))}},
	}
	for e := range endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", e+1, i>>8&255, i&255)},
			NodeName:  new(nodeName(first + e)),
		})
	}
	return s
}

func nodeName(i int) string { return fmt.Sprint("node-", i%1000) }

// fill gives a tracker services, each with endpoints.
func fill(sink tracker.Sink, services, endpoints int) {
	for i := range services {
		sink.SetService(service(i))
		sink.SetEndpointSlice(slice(i, endpoints, i*endpoints))
	}
}

// testServer is a server that a test can cut off, end and start again.
type testServer struct {
	t       testing.TB
	address string
	tracker *tracker.Tracker
	options server.Options

	mu      sync.Mutex
	conns   []net.Conn // all that there were
	batches []bool     // of which are full

	stop  context.CancelFunc
	ended chan error
}

// newTestServer returns a testServer of tr.
func newTestServer(t testing.TB, tr *tracker.Tracker, options server.Options) *testServer {
	t.Helper()
	b := &testServer{t: t, address: "unix://" + filepath.Join(private.Dir(t), "s"), tracker: tr, options: options}
	if b.options.Hooks.OnBatch == nil {
		b.options.Hooks.OnBatch = func(full bool, _ int, _ time.Duration) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.batches = append(b.batches, full)
		}
	}
	b.start()
	t.Cleanup(b.end)
	return b
}

// serveOn serves what tr has until the test ends.
func serveOn(t testing.TB, tr *tracker.Tracker, listener net.Listener, options server.Options) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.New(tr, options).Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// start begins another instance.
func (b *testServer) start() {
	b.t.Helper()
	listener, err := server.Listen(b.t.Context(), b.address, false)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := server.New(b.tracker, b.options)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, cuttable{listener, b}) }()
	b.stop, b.ended = stop, ended
}

// end ends the instance, if it has not ended yet.
func (b *testServer) end() {
	b.stop()
	if err := <-b.ended; err != nil {
		b.t.Error(err)
	}
	b.ended <- nil
}

// cut breaks all connections without a word.
func (b *testServer) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range b.conns {
		conn.Close()
	}
}

// fulls returns how many full states were sent.
func (b *testServer) fulls() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, full := range b.batches {
		if full {
			n++
		}
	}
	return n
}

type cuttable struct {
	net.Listener
	server *testServer
}

func (c cuttable) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.server.mu.Lock()
		defer c.server.mu.Unlock()
		c.server.conns = append(c.server.conns, conn)
	}
	return conn, err
}

// backend keeps what it is told.
type backend struct {
	mu sync.Mutex
	// fail makes a Sync fail, if it returns an error.
	fail  func() error
	state *model.Changes
	// syncs counts calls that succeeded, changes the ports in those after the first.
	syncs, changes int
}

// Sync implements model.Backend.
func (b *backend) Sync(_ context.Context, changes *model.Changes) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		if err := b.fail(); err != nil {
			return err
		}
	}
	if b.state == nil {
		if !changes.Full {
			panic("the first Sync is not full")
		}
		b.state = &model.Changes{}
	} else {
		b.changes += len(changes.Ports)
	}
	copied := *changes
	copied.Ports = maps.Clone(changes.Ports)
	b.state.Merge(&copied)
	b.syncs++
	return nil
}

// counts returns the number of Syncs, and of ports in those after the first.
func (b *backend) counts() (syncs, changes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.syncs, b.changes
}

// has reports whether the backend has exactly what want says.
func (b *backend) difference(want *model.Changes) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return cmp.Diff(want, b.state, sameAddrs)
}

// follow drives a backend from a server until the function that it returns is called.
func follow(t testing.TB, address, node string, b model.Backend) (stop func()) {
	t.Helper()
	return followWith(t, address, b, nodelocal.Options{Node: node})
}

func followWith(t testing.TB, address string, b model.Backend, options nodelocal.Options) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- nodelocal.Run(ctx, address, b, options) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// eventually waits until check returns "", and fails with what it returned last.
func eventually(t testing.TB, check func() string) {
	t.Helper()
	await.Until(t, "the state of server and client", func() error {
		if problem := check(); problem != "" {
			return errors.New(problem)
		}
		return nil
	})
}
