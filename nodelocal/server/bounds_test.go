package server_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// guarded is a server over TLS, and the authority for its clients.
type guarded struct {
	*testing.T
	authority *apiservertest.Certificate
	address   string
	refused   refusals
}

func serveGuarded(t *testing.T, options server.Options) *guarded {
	t.Helper()
	g := &guarded{T: t, authority: newAuthority(t, "ours")}
	files := tlsFiles(t)
	issue(t, files, g.authority, g.authority, time.Now().Add(time.Hour))
	config, err := files.Server()
	if err != nil {
		t.Fatal(err)
	}
	options.TLS, options.Hooks.OnRefused = config, g.refused.add
	g.address = serveOverTLS(t, options)
	return g
}

// config is that of a client with a new certificate for a name.
func (g *guarded) config(name string) *tls.Config {
	g.Helper()
	certificate, err := g.authority.Issue(name, time.Now().Add(time.Hour))
	if err != nil {
		g.Fatal(err)
	}
	// The server's certificate is for no host, and not what is tested.
	return &tls.Config{Certificates: []tls.Certificate{*certificate.TLS()}, InsecureSkipVerify: true, NextProtos: []string{"h2"}}
}

// conn returns a connection with a new certificate for a name.
func (g *guarded) conn(name string) *grpc.ClientConn {
	g.Helper()
	conn, err := grpc.NewClient(g.address, grpc.WithTransportCredentials(credentials.NewTLS(g.config(name))))
	if err != nil {
		g.Fatal(err)
	}
	g.Cleanup(func() { conn.Close() })
	return conn
}

// serves checks that the node can watch.
func (g *guarded) serves(node string) {
	g.Helper()
	if _, err := watch(g, nodelocalv1.NewNodeLocalClient(g.conn("system:node:"+node)), node); err != nil {
		g.Errorf("%s: %v", node, err)
	}
}

// idlers are connections that make no call, but answer pings unless they are mute.
type idlers struct {
	*testing.T
	mute         bool
	open, opened atomic.Int64
	conns        []net.Conn
	mu           sync.Mutex
	all          sync.WaitGroup
}

// begin opens n connections at a time.
func (i *idlers) begin(n int, dial func(context.Context) (net.Conn, error)) {
	ctx := patient(i)
	for range n {
		i.all.Go(func() {
			conn, err := dial(ctx)
			if err != nil {
				return
			}
			i.mu.Lock()
			i.conns = append(i.conns, conn)
			i.mu.Unlock()
			i.open.Add(1)
			i.opened.Add(1)
			defer i.open.Add(-1)
			defer conn.Close()
			i.idle(conn)
		})
	}
}

func (i *idlers) idle(conn net.Conn) {
	if i.mute {
		_, _ = conn.Read(make([]byte, 1))
		return
	}
	framer := http2.NewFramer(conn, conn)
	_, err := conn.Write([]byte(http2.ClientPreface))
	if err == nil {
		err = framer.WriteSettings()
	}
	for err == nil {
		var frame http2.Frame
		if frame, err = framer.ReadFrame(); err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				err = framer.WritePing(true, frame.Data)
			}
		}
	}
}

// end closes all.
func (i *idlers) end() {
	i.mu.Lock()
	for _, conn := range i.conns {
		conn.Close()
	}
	i.mu.Unlock()
	i.all.Wait()
}

func (g *guarded) dialTLS(config *tls.Config) func(context.Context) (net.Conn, error) {
	dialer := tls.Dialer{Config: config}
	return func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", g.address) }
}

func testServerBesideOneBadKey(t *testing.T) {
	const all, ofPeer = 60, 20
	g := serveGuarded(t, server.Options{MaxConnections: all, MaxConnectionsPerPeer: ofPeer, FirstCall: time.Hour})
	bad := &idlers{T: t}
	config := g.config("system:node:bad")
	for round := range 2 { // places that became free are given again
		bad.begin(5*all, g.dialTLS(config))
		eventually(t, func() string {
			open, refused := bad.open.Load(), g.refused.counted(server.RefusedConnections)
			return unless(open == ofPeer && refused >= (round+1)*(5*all-ofPeer), fmt.Sprintf("%d of its connections are open, %d were refused", open, refused))
		})
		g.serves("node-1")
		bad.end()
		eventually(t, func() string { // the server hears of it in its own time
			conn := g.conn("system:node:bad")
			defer conn.Close()
			_, err := watch(t, nodelocalv1.NewNodeLocalClient(conn), "bad")
			return unless(err == nil, fmt.Sprint(err))
		})
	}
}

func testServerBesideHandshakesThatDoNotEnd(t *testing.T) {
	const ofAddress, all = 250, 1000
	g := serveGuarded(t, server.Options{MaxConnections: ofAddress, FirstCall: time.Hour})
	silent := &idlers{T: t, mute: true}
	defer silent.end()
	from := func(addr netip.Addr, n int) {
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0))}
		silent.begin(n, func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", g.address) })
	}
	expect := func(opened, open int64) {
		t.Helper()
		eventually(t, func() string {
			n, refused := silent.open.Load(), g.refused.counted(server.RefusedConnections)
			return unless(silent.opened.Load() == opened && n == open && int64(refused) >= opened-open, fmt.Sprintf("%d connections are open, %d were refused, want %d open", n, refused, open))
		})
	}
	addr := netip.MustParseAddr("127.0.0.1")
	from(addr, 2*ofAddress)
	expect(2*ofAddress, ofAddress)
	g.serves("node-1") // from the same address
	for range all / ofAddress {
		addr = addr.Next()
		from(addr, ofAddress)
	}
	expect(2*ofAddress+all, all)
	g.serves("node-2")
}

func testServerLimitsConnectionsOfAUser(t *testing.T) {
	var refused refusals
	b := smallServer(t, server.Options{MaxConnectionsPerPeer: 5, FirstCall: time.Hour, Hooks: server.Hooks{OnRefused: refused.add}})
	idle := &idlers{T: t}
	defer idle.end()
	idle.begin(20, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(b.address, "unix://"))
	})
	eventually(t, func() string {
		if open, refused := idle.open.Load(), refused.counted(server.RefusedConnections); open != 5 || refused != 15 {
			return fmt.Sprintf("%d connections are open, %d were refused, want 5 and 15", open, refused)
		}
		return ""
	})
}

func testServerEndsConnectionsWithoutACall(t *testing.T) {
	tr := servingTracker(10)
	fill(tr, 10, 2)
	tr.Synced()
	var refused refusals
	b := newTestServer(t, tr, server.Options{FirstCall: time.Second, Hooks: server.Hooks{OnRefused: refused.add}})
	stream, err := watch(t, dial(t, b.address), "node-1")
	if err != nil {
		t.Fatal(err)
	}
	idle := &idlers{T: t}
	idle.begin(5, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(b.address, "unix://"))
	})
	idle.all.Wait()
	if opened, n := idle.opened.Load(), refused.counted(server.RefusedSilent); opened != 5 || n != 5 {
		t.Errorf("of %d connections %d were ended, want 5", opened, n)
	}
	tr.SetEndpointSlice(slice(1, 1, 0))
	if _, err := stream.Recv(); err != nil {
		t.Errorf("the older connection with a call: %v", err)
	}
}

// testServerLimitsAllServices opens calls of each service, and some whose request never comes.
func testServerLimitsAllServices(t *testing.T) {
	for name, begin := range map[string]func(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error){
		"health": func(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
			return healthv1.NewHealthClient(conn).Watch(ctx, &healthv1.HealthCheckRequest{})
		},
		"reflection": func(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
			return reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
		},
		"a call without its request": func(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
			return conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, healthv1.Health_Check_FullMethodName)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var watchers atomic.Int64
			b := smallServer(t, server.Options{MaxStreamsPerPeer: 3, Hooks: server.Hooks{OnWatchers: func(n int) { watchers.Store(int64(n)) }}})
			conn, client := connect(t, b.address), dial(t, b.address)
			ctx, end := context.WithCancel(patient(t))
			for range 3 {
				if _, err := begin(ctx, conn); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, func() string { return unless(watchers.Load() == 3, "the calls are not counted") })
			_, err := watch(t, client, "node-1")
			expectCode(t, err, codes.ResourceExhausted, "too many calls")
			end()
			eventually(t, func() string {
				_, err := watch(t, client, "node-1")
				return unless(err == nil, fmt.Sprint(err))
			})
		})
	}
}

func unless(good bool, problem string) string {
	if good {
		return ""
	}
	return problem
}

func testServerAuthorizesAllServices(t *testing.T) {
	g := serveGuarded(t, server.Options{})
	for name, may := range map[string]bool{"system:node:node-7": true, "admin": false} {
		conn, ctx := g.conn(name), patient(t)
		_, health := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
		stream, reflection := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
		if reflection == nil {
			_ = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}) // Recv tells
			_, reflection = stream.Recv()
		}
		for service, err := range map[string]error{"health": health, "reflection": reflection} {
			switch {
			case may && err != nil:
				t.Errorf("%s for %s: %v", service, name, err)
			case !may:
				expectCode(t, err, codes.PermissionDenied, `"system:node:NAME"`)
			}
		}
	}
}
