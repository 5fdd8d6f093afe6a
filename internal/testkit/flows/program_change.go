package flows

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	"github.com/nftproxy/nftproxy/tracker"
)

// clusterIP is the address of the Service that RunChange changes.
const clusterIP = "10.96.0.10"

// RunChange runs the program while a Service changes: endpoints come and go, the server is killed and comes back, and
// the Service is deleted and comes back. Connections from a pod show what the program has applied.
func (b Program) RunChange(t *testing.T) {
	t.Helper()
	l := lab.ForTest(t)
	pods := map[string]string{"first": "10.244.1.5", "second": "10.244.1.6"}
	for name, addr := range pods {
		servePod(t, l, name, netip.MustParseAddr(addr))
	}
	tr := tracker.New(tracker.Options{EveryNode: true, History: 100})
	tr.SetService(changedService())
	endpoints := func(names ...string) {
		s := changedSlice()
		for _, name := range names {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{pods[name]}})
		}
		tr.SetEndpointSlice(s)
	}
	endpoints("first")
	tr.Synced()
	served := &killable{t: t, tracker: tr, target: "unix://" + filepath.Join(private.Dir(t), "node-local.sock")}
	served.start()
	t.Cleanup(served.kill)
	p := lab.StartCommand(t, l.Node, b.Command(served.target))
	defer p.Stop(t)
	expect := func(step, want string) {
		t.Helper()
		await.Until(t, step, func() error {
			if got := dial(l.Client); got != want {
				return fmt.Errorf("a connection to %s: %s, want %s", clusterIP, got, want)
			}
			return nil
		})
	}
	expect("the start", "first")
	endpoints("second")
	expect("another endpoint", "second")
	endpoints()
	expect("no endpoint", refusedText)
	endpoints("first")
	expect("an endpoint again", "first")
	served.kill()
	endpoints("second")
	if got := dial(l.Client); got != "first" {
		t.Errorf("while the server is away a connection reaches %s, want what was there", got)
	}
	served.start()
	expect("the server is back, with another endpoint", "second")
	tr.DeleteService("shop", "web")
	await.Until(t, "the Service is gone", func() error {
		if got := dial(l.Client); got == "first" || got == "second" {
			return fmt.Errorf("%s answers", got)
		}
		return nil
	})
	served.kill()
	tr.SetService(changedService())
	served.start()
	expect("the Service came while the server was away", "second")
}

func changedService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIPs: []string{clusterIP}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

func changedSlice() *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080))}},
	}
}

// servePod adds a pod that tells its name to whoever connects.
func servePod(t *testing.T, l *lab.Lab, name string, addr netip.Addr) {
	t.Helper()
	pod, err := l.AddPod(name, addr)
	if err != nil {
		t.Fatal(err)
	}
	lab.ServeTCP(t, pod, ":8080", func(conn net.Conn) { fmt.Fprintln(conn, name) })
}

const refusedText = "nobody, it is refused"

// dial returns who answers at the Service, or how a connection ends.
func dial(client *lab.Host) string {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := client.DialContext(ctx, "tcp", net.JoinHostPort(clusterIP, "80"))
	if err == nil {
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		var name string
		if name, err = bufio.NewReader(conn).ReadString('\n'); err == nil {
			return name[:len(name)-1]
		}
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) {
		return refusedText
	}
	return err.Error()
}

// killable is a server that ends without a word and begins again as another instance.
type killable struct {
	t       testing.TB
	tracker *tracker.Tracker
	target  string

	stop  context.CancelFunc
	ended chan error
	mu    sync.Mutex
	conns []net.Conn
}

func (k *killable) start() {
	k.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	listener, err := server.Listen(ctx, k.target, false)
	if err != nil {
		k.t.Fatal(err)
	}
	k.stop, k.ended = stop, make(chan error, 1)
	go func() { k.ended <- server.New(k.tracker, server.Options{}).Serve(ctx, remembering{listener, k}) }()
}

// kill cuts all connections before it ends the server. Killing twice is no error.
func (k *killable) kill() {
	if k.stop == nil {
		return
	}
	k.mu.Lock()
	for _, conn := range k.conns {
		conn.Close()
	}
	k.conns = nil
	k.mu.Unlock()
	k.stop()
	if err := <-k.ended; err != nil {
		k.t.Error(err)
	}
	k.stop = nil
}

// remembering is a listener that tells a killable of its connections.
type remembering struct {
	net.Listener
	of *killable
}

func (r remembering) Accept() (net.Conn, error) {
	conn, err := r.Listener.Accept()
	if err == nil {
		r.of.mu.Lock()
		r.of.conns = append(r.of.conns, conn)
		r.of.mu.Unlock()
	}
	return conn, err
}
