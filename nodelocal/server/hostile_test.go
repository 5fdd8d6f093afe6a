package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
	"github.com/nftproxy/nftproxy/tracker"
)

// dial returns an API client with a connection of its own.
func dial(t testing.TB, address string, options ...grpc.DialOption) nodelocalv1.NodeLocalClient {
	return nodelocalv1.NewNodeLocalClient(connect(t, address, options...))
}

func connect(t testing.TB, address string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// patient returns a context that ends in time for a call that is never answered.
func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*await.Patience)
	t.Cleanup(cancel)
	return ctx
}

// watch opens a stream and waits for its first part, or its error.
func watch(t testing.TB, client nodelocalv1.NodeLocalClient, node string) (grpc.ServerStreamingClient[nodelocalv1.Update], error) {
	stream, err := client.Watch(patient(t), &nodelocalv1.WatchRequest{Node: node})
	if err != nil {
		return nil, err
	}
	_, err = stream.Recv()
	return stream, err
}

// refusals counts what a server refuses.
type refusals struct {
	mu    sync.Mutex
	count map[string]int
}

func (r *refusals) add(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == nil {
		r.count = map[string]int{}
	}
	r.count[reason]++
}

func (r *refusals) counted(reason string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count[reason]
}

func expectCode(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("got %v, want %v with %q", err, code, text)
	}
}

func smallServer(t *testing.T, options server.Options) *testServer {
	tr := servingTracker(10)
	fill(tr, 10, 2)
	tr.Synced()
	return newTestServer(t, tr, options)
}

func testServerRefusesNodeNames(t *testing.T) {
	var refused refusals
	b := smallServer(t, server.Options{Hooks: server.Hooks{OnRefused: refused.add}})
	client := dial(t, b.address)
	for _, tc := range []struct {
		name, node string
		code       codes.Code
		text       string
	}{
		{"an empty one", "", codes.InvalidArgument, "RFC 1123"},
		{"one that is too long", strings.Repeat("a", 254), codes.InvalidArgument, "253"},
		{"one with other characters", "Node_1\n", codes.InvalidArgument, `node "Node_1\n"`},
		{"one that is huge", strings.Repeat("a", 1<<20), codes.ResourceExhausted, "larger than max"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := watch(t, client, tc.node)
			expectCode(t, err, tc.code, tc.text)
			stream, err := client.Get(patient(t), &nodelocalv1.GetRequest{Node: tc.node})
			if err == nil {
				_, err = stream.Recv()
			}
			expectCode(t, err, tc.code, tc.text)
		})
	}
	t.Run("they are counted", func(t *testing.T) {
		if n := refused.counted(server.RefusedNode); n != 6 {
			t.Errorf("%d, want 6", n)
		}
	})
	t.Run("a server of one node serves no other", func(t *testing.T) {
		tr := tracker.New(tracker.Options{NodeName: "node-1"})
		tr.Synced()
		one := newTestServer(t, tr, server.Options{})
		_, err := watch(t, dial(t, one.address), "node-2")
		expectCode(t, err, codes.NotFound, `node "node-2" is not served here`)
	})
}

func testServerLimitsStreams(t *testing.T) {
	var refused refusals
	b := smallServer(t, server.Options{MaxStreams: 40, MaxStreamsPerPeer: 30, Hooks: server.Hooks{OnRefused: refused.add}})
	client := dial(t, b.address)
	open := 0
	for i := range 1000 {
		if i == 99 {
			break // more wait in this client: a connection carries 100
		}
		_, err := watch(t, client, fmt.Sprint("node-", i))
		if err == nil {
			open++
			continue
		}
		expectCode(t, err, codes.ResourceExhausted, "too many calls")
	}
	if open != 30 || refused.counted(server.RefusedStreams) != 69 {
		t.Errorf("%d streams are open, %d refused; want 30 and 69", open, refused.counted(server.RefusedStreams))
	}
}

func testServerWithClientsThatDoNotRead(t *testing.T) {
	tr := servingTracker(10)
	fill(tr, 2500, 10)
	tr.Synced()
	var refused refusals
	var mu sync.Mutex
	watchers := 0
	b := newTestServer(t, tr, server.Options{
		SendTimeout: 300 * time.Millisecond, MinInterval: time.Millisecond,
		Hooks: server.Hooks{OnRefused: refused.add, OnWatchers: func(n int) {
			mu.Lock()
			defer mu.Unlock()
			watchers = n
		}},
	})
	before := heap()
	const stalled = 20
	var streams []grpc.ServerStreamingClient[nodelocalv1.Update]
	for i := range stalled {
		// A small window, so that the server's data stays with the server.
		client := dial(t, b.address, grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10), grpc.WithStaticStreamWindowSize(64<<10))
		stream, err := client.Watch(patient(t), &nodelocalv1.WatchRequest{Node: nodeName(i)})
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, stream)
	}
	reader := &backend{}
	follow(t, b.address, "node-1", reader)
	eventually(t, func() string {
		if syncs, _ := reader.counts(); syncs == 0 {
			return "one that reads waits for those that do not"
		}
		return ""
	})
	peak := heap() - before
	eventually(t, func() string {
		mu.Lock()
		defer mu.Unlock()
		if n := refused.counted(server.RefusedStalled); n < stalled || watchers != 1 {
			return fmt.Sprintf("%d of %d are disconnected, %d streams are left", n, stalled, watchers)
		}
		return ""
	})
	for _, stream := range streams {
		var err error
		for err == nil {
			_, err = stream.Recv()
		}
		expectCode(t, err, codes.Unavailable, "") // as nodelocal.proto says
	}
	if peak > 50<<20 {
		t.Errorf("%d clients that do not read take %d MB", stalled, peak>>20)
	}
	t.Logf("%d clients that do not read take %d MB, and %d MB afterwards", stalled, peak>>20, (heap()-before)>>20)
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func testServerWithGarbageAndHalfOpenConnections(t *testing.T) {
	b := smallServer(t, server.Options{MaxConnections: 20})
	path := strings.TrimPrefix(b.address, "unix://")
	random := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		garbage := make([]byte, 4096)
		for i := range garbage {
			garbage[i] = byte(random.Uint32())
		}
		if random.IntN(2) == 0 {
			copy(garbage, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		}
		_, _ = conn.Write(garbage)
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
	}
	// These say nothing at all. The server gives them 10 s, and there are slots left.
	for range 10 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
	}
	// The server hears in its own time that the clients before have gone.
	eventually(t, func() string {
		if _, err := watch(t, dial(t, b.address), "node-1"); err != nil {
			return err.Error()
		}
		return ""
	})
}

func TestHealthService(t *testing.T) {
	tr := servingTracker(0)
	b := newTestServer(t, tr, server.Options{})
	client, ctx := healthv1.NewHealthClient(connect(t, b.address)), patient(t)
	expect := func(want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		eventually(t, func() string {
			got, err := client.Check(ctx, &healthv1.HealthCheckRequest{Service: "nftproxy.nodelocal.v1.NodeLocal"})
			if err != nil || got.Status != want {
				return fmt.Sprint(got, err)
			}
			return ""
		})
	}
	expect(healthv1.HealthCheckResponse_NOT_SERVING)
	tr.Waiting("endpointslices: forbidden")
	stream, err := dial(t, b.address).Get(patient(t), &nodelocalv1.GetRequest{Node: "n"})
	if err == nil {
		_, err = stream.Recv()
	}
	expectCode(t, err, codes.Unavailable, "waits for endpointslices: forbidden")
	_, err = watch(t, dial(t, b.address), "n")
	expectCode(t, err, codes.Unavailable, "waits for endpointslices: forbidden")
	tr.Synced()
	expect(healthv1.HealthCheckResponse_SERVING)
}

func TestListen(t *testing.T) {
	t.Run("a socket is private", func(t *testing.T) {
		path := filepath.Join(private.Dir(t), "made", "s")
		l, err := server.Listen(t.Context(), "unix://"+path, false)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		l.Close()
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Error("the socket is left")
		}
	})
	t.Run("a socket that a killed process left is replaced", func(t *testing.T) {
		path := filepath.Join(private.Dir(t), "s")
		stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		stale.SetUnlinkOnClose(false)
		stale.Close()
		l, err := server.Listen(t.Context(), "unix://"+path, false)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	})
	t.Run("a link that nobody else can replace leads to the directory", func(t *testing.T) {
		dir := private.Dir(t)
		if err := errors.Join(os.Mkdir(filepath.Join(dir, "closed"), 0o700), os.Symlink("../"+filepath.Base(dir)+"/closed", filepath.Join(dir, "link"))); err != nil {
			t.Fatal(err)
		}
		l, err := server.Listen(t.Context(), "unix://"+filepath.Join(dir, "link", "s"), false)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	})
	t.Run("a second server refuses, and the first one stays", func(t *testing.T) {
		path := filepath.Join(private.Dir(t), "s")
		first, err := server.Listen(t.Context(), "unix://"+path, false)
		if err != nil {
			t.Fatal(err)
		}
		defer first.Close()
		if _, err := server.Listen(t.Context(), "unix://"+path, false); !errors.Is(err, server.ErrInUse) || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v, want an error that names the path", err)
		}
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	})
	t.Run("of servers that begin at once, one listens", func(t *testing.T) {
		for range 50 {
			path := filepath.Join(private.Dir(t), "s")
			listeners := make(chan net.Listener, 4)
			var all sync.WaitGroup
			for range cap(listeners) {
				all.Go(func() {
					l, err := server.Listen(t.Context(), "unix://"+path, false)
					if err == nil {
						listeners <- l
					} else if !errors.Is(err, server.ErrInUse) {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if n := len(listeners); n != 1 {
				t.Fatalf("%d servers listen, want 1", n)
			}
			(<-listeners).Close()
		}
	})
	t.Run("a server whose socket is gone keeps its path", func(t *testing.T) {
		path := filepath.Join(private.Dir(t), "s")
		first, err := server.Listen(t.Context(), "unix://"+path, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Listen(t.Context(), "unix://"+path, false); !errors.Is(err, server.ErrInUse) {
			t.Errorf("a second server: %v, want ErrInUse", err)
		}
		first.Close()
		second, err := server.Listen(t.Context(), "unix://"+path, false)
		if err != nil {
			t.Fatal(err)
		}
		second.Close()
	})
	t.Run("a path is free once its server has ended, whatever else has the files", func(t *testing.T) {
		path := filepath.Join(private.Dir(t), "s")
		first, err := server.Listen(t.Context(), "unix://"+path, false)
		if err != nil {
			t.Fatal(err)
		}
		inherit(t, path+".lock")
		first.Close()
		second, err := server.Listen(t.Context(), "unix://"+path, false)
		if err != nil {
			t.Fatal(err)
		}
		second.Close()
	})
	t.Run("one whose socket another server has replaced leaves it there", func(t *testing.T) {
		path := filepath.Join(private.Dir(t), "s")
		first, err := server.Listen(t.Context(), "unix://"+path, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		second, err := server.Listen(t.Context(), "unix://"+path, false)
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		first.Close()
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	})
	for _, tc := range []struct {
		name, want string
		address    func(dir string) string
	}{
		{"a file that is no socket is kept", "not a socket", func(dir string) string {
			_ = os.WriteFile(filepath.Join(dir, "s"), nil, 0o600)
			return "unix://" + filepath.Join(dir, "s")
		}},
		{"a directory that others may write to is refused", "/open is writable for others", func(dir string) string {
			return "unix://" + filepath.Join(opened(dir, 0o777), "s")
		}},
		{"a directory that a group may write to is refused", "/open is writable for others", func(dir string) string {
			return "unix://" + filepath.Join(opened(dir, 0o770), "s")
		}},
		{"a sticky directory is refused", "/open is writable for others", func(dir string) string {
			return "unix://" + filepath.Join(opened(dir, 0o777|os.ModeSticky), "s")
		}},
		{"a directory below one that others may write to is refused", "/open is writable for others", func(dir string) string {
			return "unix://" + filepath.Join(opened(dir, 0o777|os.ModeSticky), "made", "by", "the-server", "s")
		}},
		{"a link that others may replace is refused", "/open is writable for others", func(dir string) string {
			open := opened(dir, 0o777)
			_ = os.Mkdir(filepath.Join(dir, "closed"), 0o700)
			_ = os.Symlink("../closed", filepath.Join(open, "link"))
			_ = os.Symlink("open/link", filepath.Join(dir, "link"))
			return "unix://" + filepath.Join(dir, "link", "s")
		}},
		{"a directory below one of another user is refused", "/open belongs to user 1234", func(dir string) string {
			open := opened(dir, 0o755)
			_ = os.Mkdir(filepath.Join(open, "closed"), 0o700)
			_ = os.Chown(open, 1234, 0)
			return "unix://" + filepath.Join(open, "closed", "s")
		}},
		{"links in a circle are refused", "too many levels of symbolic links", func(dir string) string {
			_ = os.Symlink("b", filepath.Join(dir, "a"))
			_ = os.Symlink("a", filepath.Join(dir, "b"))
			return "unix://" + filepath.Join(dir, "a", "s")
		}},
		{"a path that is too long is refused", "at most 100", func(dir string) string { return "unix://" + filepath.Join(dir, strings.Repeat("x", 120)) }},
		{"a relative path is refused", "neither", func(string) string { return "unix://s" }},
		{"TCP without TLS is refused", "TLS with client certificates", func(string) string { return "tcp://127.0.0.1:0" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if strings.Contains(tc.want, "1234") {
				netns.Need(t) // root, for chown
			}
			l, err := server.Listen(t.Context(), tc.address(private.Dir(t)), false)
			if err == nil {
				l.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// opened makes the directory open in dir.
func opened(dir string, mode os.FileMode) string {
	dir = filepath.Join(dir, "open")
	_ = os.Mkdir(dir, 0o700)
	_ = os.Chmod(dir, mode)
	return dir
}

func testServerListensAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(private.Dir(t), "run")
	address := "unix://" + filepath.Join(dir, "s")
	tr := servingTracker(10)
	fill(tr, 10, 2)
	tr.Synced()
	listener, err := server.Listen(t.Context(), address, false)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, tr, listener, server.Options{})
	old, err := watch(t, dial(t, address), "node-1")
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{filepath.Join(dir, "s"), dir} {
		if err := os.RemoveAll(gone); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() string {
			if _, err := watch(t, dial(t, address), "node-1"); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	tr.SetEndpointSlice(slice(1, 1, 0))
	if _, err := old.Recv(); err != nil {
		t.Errorf("the client that was there: %v", err)
	}
}

func testServerStopsWithStreams(t *testing.T) {
	b := smallServer(t, server.Options{})
	stream, err := watch(t, dial(t, b.address), "node-1")
	if err != nil {
		t.Fatal(err)
	}
	b.end()
	_, err = stream.Recv()
	expectCode(t, err, codes.Unavailable, "the server stops") // and does not cut the connection, which it does in the end
}

// inherit makes another descriptor of the open file with that name, as a program has it between fork and exec, until the
// test ends.
func inherit(t *testing.T, name string) {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range descriptors {
		if to, err := os.Readlink("/proc/self/fd/" + d.Name()); err != nil || to != name {
			continue
		}
		fd, err := strconv.Atoi(d.Name())
		if err != nil {
			t.Fatal(err)
		}
		again, err := unix.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(again) })
		return
	}
	t.Fatalf("%s is not open", name)
}
