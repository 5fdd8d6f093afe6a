package localnodeport_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/nftproxy/nftproxy/internal/localnodeport"
	"github.com/nftproxy/nftproxy/model"
	"k8s.io/klog/v2"
)

// patience bounds each wait for something that must happen.
const patience = 30 * time.Second

// family has what the tests need of each IP family.
type family struct {
	model.Family
	index    int
	loopback string
}

var families = []family{{model.IPv4, 0, "127.0.0.1"}, {model.IPv6, 1, "::1"}}

func forEachFamily(t *testing.T, test func(t *testing.T, f family)) {
	for _, f := range families {
		t.Run(f.String(), func(t *testing.T) { test(t, f) })
	}
}

func (f family) at(port uint16) string { return net.JoinHostPort(f.loopback, fmt.Sprint(port)) }
func (f family) pod(number int) string { return podAddrs(number)[f.index] }
func (f family) node(port uint16) string {
	return net.JoinHostPort(nodeAddrs[f.index], fmt.Sprint(port))
}

// echo is a server in a pod that says its own address and then repeats whatever it is told.
func (f family) echo(t *testing.T, pod int, port uint16) netip.AddrPort {
	t.Helper()
	return f.serve(t, pod, port, func(conn *net.TCPConn) {
		fmt.Fprintln(conn, conn.LocalAddr())
		io.Copy(conn, conn)
	})
}

// serve runs a server in a pod.
func (f family) serve(t *testing.T, pod int, port uint16, handle func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	at := netip.AddrPortFrom(netip.MustParseAddr(f.pod(pod)), port)
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.AcceptTCP()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // out of file descriptors, which one test brings about
				time.Sleep(time.Millisecond)
				continue
			}
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}()
	return at
}

// service returns a TCP port of a Service.
func (f family) service(name string, nodePort uint16, endpoints ...netip.AddrPort) *model.ServicePort {
	p := &model.ServicePort{
		ID:       model.PortID{Namespace: "shop", Service: name, Port: "http", Protocol: model.TCP, Family: f.Family},
		NodePort: nodePort,
	}
	for _, e := range endpoints {
		p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: e})
	}
	return p
}

// node is a Forwarder at work.
type node struct {
	*localnodeport.Forwarder
	ctx  context.Context
	stop func()
	log  *lines
}

func start(t *testing.T, options localnodeport.Options) *node {
	t.Helper()
	if options.Addresses == nil {
		options.Addresses = localnodeport.Addresses([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")})
	}
	n := &node{Forwarder: localnodeport.New(options), log: &lines{}}
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), funcr.New(n.log.add, funcr.Options{Verbosity: 2})))
	n.ctx, n.stop = ctx, stop
	t.Cleanup(func() {
		// The next test uses the same ports, and listeners end with stop only in their own time.
		n.Apply(ctx, &model.Changes{Full: true})
		stop()
	})
	return n
}

// apply tells the Forwarder of changed ports.
func (n *node) apply(ports ...*model.ServicePort) {
	n.Apply(n.ctx, &model.Changes{Ports: model.PortsByID(ports...)})
}

// lines has the lines of the log.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) add(_, args string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, args)
}

// with returns the lines that hold all of some texts.
func (l *lines) with(texts ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
lines:
	for _, line := range l.all {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		found = append(found, line)
	}
	return found
}

func dial(t *testing.T, to string) *net.TCPConn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", to, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

// ask connects to an echo server, says something, and returns who answered it.
func ask(to string) (string, error) {
	conn, err := net.DialTimeout("tcp", to, patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return converse(conn, bufio.NewReader(conn))
}

func converse(conn net.Conn, from *bufio.Reader) (string, error) {
	conn.SetDeadline(time.Now().Add(patience))
	who, err := from.ReadString('\n')
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(who), repeat(conn, from)
}

// repeat says something to an echo server and hears it again.
func repeat(conn net.Conn, from *bufio.Reader) error {
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		return err
	}
	if heard, err := from.ReadString('\n'); err != nil || heard != "hello\n" {
		return fmt.Errorf("heard %q, error %v", heard, err)
	}
	return nil
}

func expectRefused(t *testing.T, to string) {
	t.Helper()
	if who, err := ask(to); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%s: got %q, error %v, want it refused", to, who, err)
	}
}

func expect(t *testing.T, to string, server netip.AddrPort) {
	t.Helper()
	if who, err := ask(to); who != server.String() || err != nil {
		t.Errorf("%s: got %q, error %v, want %s", to, who, err, server)
	}
}

// receive returns what comes from a channel.
func receive[T any](t *testing.T, from <-chan T) (received T) {
	t.Helper()
	select {
	case received = <-from:
	case <-time.After(patience):
		t.Fatalf("nothing came within %v", patience)
	}
	return received
}
