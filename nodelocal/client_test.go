package nodelocal_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nftproxy/nftproxy/internal/protocol"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodelocal"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) logger() nodelocal.Options {
	return nodelocal.Options{Logger: funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.text = append(l.text, args)
	}, funcr.Options{})}
}

// Write implements io.Writer for slog, with a line each time.
func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, string(line))
	return len(line), nil
}

// with returns the lines that contain text.
func (l *lines) with(text string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.text {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	return out
}

func TestClient(t *testing.T) {
	t.Run("leaves out what a later server adds", testClientOfALaterServer)
	t.Run("reads a server with more fields", testClientOfAServerWithMoreFields)
	t.Run("acts on nothing that a bad server broke", testClientOfABadServer)
	t.Run("finds a server that is back", testClientFindsAServerThatIsBack)
	t.Run("logs a warning of the server once", testClientOfAServerThatWarns)
	t.Run("does not believe an empty full state", testClientDoesNotBelieveAnEmptyState)
	t.Run("holds most of a full state for a while", testClientHoldsMostForAWhile)
	t.Run("holds no more than its limits", testClientHoldsNoMoreThanItsLimits)
	t.Run("does not believe an empty first state over Services in force", testClientDoesNotBelieveAnEmptyFirstState)
	t.Run("believes deletions to the last", testClientBelievesDeletions)
}

func testClientOfALaterServer(t *testing.T) {
	later := func(name string, edit func(*nodelocalv1.ServicePort)) *nodelocalv1.Update {
		u := increment(name)
		edit(u.Set[0])
		return u
	}
	policy := func(p *nodelocalv1.ServicePort) { p.ExternalPolicy = 9 }
	protocolNumber := func(p *nodelocalv1.ServicePort) { p.Id.Protocol = 33 }
	target := serve(t, &script{calls: []play{func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		send(full("a", "b"), later("dccp", protocolNumber), later("b", policy), later("dccp", protocolNumber), later("b", policy), increment("c"))
		select {}
	}}})
	var log lines
	var skipped atomic.Int32
	options := log.logger()
	options.OnSkip = func(error) { skipped.Add(1) }
	backend := runWith(t, target, options)
	backend.await(t, "a c")
	if n := skipped.Load(); n != 4 {
		t.Errorf("OnSkip was called %d times, want 4", n)
	}
	if got := log.with("too old"); len(got) != 2 {
		t.Errorf("logged %q, want each reason once", got)
	}
}

func deletion(names ...string) *nodelocalv1.Update {
	u := increment()
	for _, name := range names {
		u.Delete = append(u.Delete, port(name).Id)
	}
	return u
}

func testClientDoesNotBelieveAnEmptyState(t *testing.T) {
	lost, more := make(chan struct{}), make(chan struct{})
	target := serve(t, &script{calls: []play{func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		send(full("a", "b"))
		<-lost // not before the backend has them
		return errors.New("the server ends the stream")
	}, func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		send(full(), deletion("a"))
		<-more
		send(increment("c"))
		select {}
	}}})
	var log lines
	options, guard := log.logger(), &model.ListGuard{}
	options.Guard = guard
	backend := runWith(t, target, options)
	backend.await(t, "a b")
	close(lost)
	holds := func(reason string) func() bool {
		return func() bool {
			return slices.ContainsFunc(guard.Held(), func(held string) bool { return strings.Contains(held, reason) })
		}
	}
	await.True(t, "a hold", holds("services: the source lacks 2 of 2; what it lacks stays until 10m0s after it has others"))
	backend.await(t, "b") // "a" the server has deleted by itself
	close(more)
	backend.await(t, "b c")
	await.True(t, "an end of the hold", holds("stays until 2"))
	if got := log.with("Not believing what a list lacks"); len(got) != 2 {
		t.Errorf("logged %q, want an error when the hold begins, and one with its end", got)
	}
	if !guard.Believe() {
		t.Error("nothing was held")
	}
	backend.await(t, "c")
}

// A client that moves to another server gets the full state of that one.
func testClientHoldsMostForAWhile(t *testing.T) {
	var all []string
	for i := range 20 {
		all = append(all, fmt.Sprint("gone", i))
	}
	lost := make(chan struct{})
	target := serve(t, &script{calls: []play{func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		send(full(append(slices.Clip(all), "stays")...))
		<-lost
		return errors.New("the server ends the stream")
	}, func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		send(full("new", "stays"))
		select {}
	}}})
	held := make(chan string, 10)
	options := nodelocal.Options{Guard: &model.ListGuard{
		Patience: 2 * time.Second, OnHeld: func(_, reason string) { held <- reason },
	}}
	backend := runWith(t, target, options)
	backend.await(t, strings.Join(slices.Sorted(slices.Values(append(slices.Clip(all), "stays"))), " "))
	close(lost)
	if got := await.Receive(t, "OnHeld", held); !strings.HasPrefix(got, "the source lacks 20 of 21; what it lacks stays until 2") {
		t.Errorf("OnHeld was told %q", got)
	}
	backend.await(t, "new stays")
	if got := await.Receive(t, "OnHeld", held); got != "" {
		t.Errorf("OnHeld was told %q at the end", got)
	}
}

// What is held counts for Options.Limits, and makes room for what the server has.
func testClientHoldsNoMoreThanItsLimits(t *testing.T) {
	first, second := make(chan struct{}), make(chan struct{})
	target := serve(t, &script{calls: []play{func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		send(full("a", "b"))
		<-first
		return errors.New("the server ends the stream")
	}, func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		send(full("c"))
		<-second
		send(increment("d"))
		select {}
	}}})
	guard := &model.ListGuard{}
	backend := runWith(t, target, nodelocal.Options{Guard: guard, Limits: nodelocal.Limits{Ports: 3}})
	backend.await(t, "a b")
	close(first)
	backend.await(t, "a b c")
	if held := guard.Held(); len(held) != 1 {
		t.Errorf("held: %q", held)
	}
	close(second)
	backend.await(t, "c d")
	if held := guard.Held(); len(held) > 0 {
		t.Errorf("held: %q", held)
	}
}

func testClientDoesNotBelieveAnEmptyFirstState(t *testing.T) {
	for name, state := range map[string]*nodelocalv1.Update{"empty": full(), "default/kubernetes alone": fullOf(kubernetes())} {
		t.Run(name, func(t *testing.T) {
			held, more := make(chan string, 10), make(chan struct{})
			target := serve(t, &script{calls: []play{func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
				send(state)
				<-more
				send(increment("a"), deletionOf(kubernetes()))
				select {}
			}}})
			options := nodelocal.Options{Guard: &model.ListGuard{
				Before: func(string, bool) bool { return true },
				OnHeld: func(_, reason string) { held <- reason },
			}}
			backend := runWith(t, target, options)
			await.Receive(t, "OnHeld", held)
			if _, n := backend.has(); n > 0 {
				t.Errorf("the backend was called %d times", n)
			}
			close(more)
			backend.await(t, "a")
		})
	}
}

// kubernetes is the port of default/kubernetes.
func kubernetes() *nodelocalv1.ServicePort {
	p := port("kubernetes")
	p.Id.Namespace = "default"
	return p
}

func fullOf(ports ...*nodelocalv1.ServicePort) *nodelocalv1.Update {
	u := full()
	u.Set = ports
	return u
}

func deletionOf(port *nodelocalv1.ServicePort) *nodelocalv1.Update {
	u := increment()
	u.Delete = append(u.Delete, port.Id)
	return u
}

func testClientBelievesDeletions(t *testing.T) {
	target := serve(t, &script{calls: []play{func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		send(full("a", "b"), increment("c"), deletion("a", "b"), deletion("c"))
		select {}
	}}})
	options := nodelocal.Options{Guard: &model.ListGuard{OnHeld: func(_, reason string) { t.Errorf("held: %s", reason) }}}
	backend := runWith(t, target, options)
	await.True(t, "a Sync without Services", func() bool {
		ports, syncs := backend.has()
		return syncs > 0 && ports == ""
	})
}

// addLater puts a field of a later version into a message and all messages in it.
func addLater(m protoreflect.Message) {
	m.SetUnknown(protowire.AppendString(protowire.AppendTag(m.GetUnknown(), 200, protowire.BytesType), "later"))
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				addLater(value.List().Get(i).Message())
			}
		default:
			addLater(value.Message())
		}
		return true
	})
}

// A later version may add fields everywhere. One in Update is a kind of change, perhaps the only one in a batch.
func testClientOfAServerWithMoreFields(t *testing.T) {
	withLater := func(u *nodelocalv1.Update) *nodelocalv1.Update {
		for _, p := range u.Set {
			p.Cluster = []*nodelocalv1.Endpoint{{Address: "10.1.0.1", Port: 80}}
			p.Serving = []*nodelocalv1.AddressPort{{Address: "10.1.0.1", Port: 80}}
		}
		addLater(u.ProtoReflect())
		return u
	}
	positions := make(chan *nodelocalv1.Position, 2)
	target := serve(t, &script{calls: []play{func(seen *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		positions <- seen
		last := withLater(increment("b"))
		last.Sync.Position.Revision = 7
		// Nothing but a kind of change that the client does not know.
		send(withLater(full("a")), withLater(increment()), withLater(unfinished(increment())), last)
		return errors.New("the server ends the stream")
	}, func(seen *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		positions <- seen
		send(withLater(increment("c")))
		select {}
	}}})
	var log lines
	runWith(t, target, log.logger()).await(t, "a b c")
	<-positions
	if seen := <-positions; seen.GetRevision() != 7 {
		t.Errorf("the client comes back with %v, want revision 7", seen)
	}
	if got := log.with("field 200"); len(got) != 1 {
		t.Errorf("logged %q, want the kind of change once", got)
	}
}

func TestClientLimits(t *testing.T) {
	t.Run("a batch that never ends is refused, and its end is awaited no longer", func(t *testing.T) {
		target := serve(t, &script{calls: []play{
			func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
				for i := range 1000 {
					send(unfinished(increment(fmt.Sprint("x", i))))
				}
				select {}
			},
			func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
				send(full("a"))
				select {}
			},
		}})
		var log lines
		options := log.logger()
		options.Limits = protocol.Limits{Ports: 100}
		runWith(t, target, options).await(t, "a")
		if got := log.with("Limits.Ports is 100"); len(got) != 1 {
			t.Errorf("logged %q, want the limit once", got)
		}
	})
	t.Run("increments that add up to too much are refused", func(t *testing.T) {
		target := serve(t, &script{calls: []play{func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
			send(full("a", "b"))
			send(increment("b", "c"))
			gone := increment("d")
			gone.Delete = []*nodelocalv1.PortID{port("a").Id}
			send(gone) // still three
			send(increment("e"))
			select {}
		}}})
		var log lines
		options := log.logger()
		options.Limits = protocol.Limits{Ports: 3}
		backend := runWith(t, target, options)
		await.Until(t, "the state is refused", func() error {
			if len(log.with("the state with all increments")) == 0 {
				return errors.New("it is not")
			}
			return nil
		})
		backend.await(t, "b c d")
	})
}

// TestClientBackOff counts how often a server is asked for everything.
func TestClientBackOff(t *testing.T) {
	bad := increment("x")
	bad.Set[0].ClusterIp = "nonsense"
	for _, tc := range []struct {
		name    string
		batches []*nodelocalv1.Update
	}{
		{"a good batch and a bad one", []*nodelocalv1.Update{full("a"), bad}},
		{"many good batches and a bad one", []*nodelocalv1.Update{full("a"), increment("b"), increment("c"), bad}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			calls := make(chan time.Time, 100)
			target := serve(t, &script{calls: []play{func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
				calls <- time.Now()
				send(tc.batches...)
				return errors.New("the server ends the stream")
			}}})
			runWith(t, target, nodelocal.Options{})
			first, sixth := await.Receive(t, "a call", calls), time.Time{}
			for range 5 {
				sixth = await.Receive(t, "a call", calls)
			}
			// The waits are at least 67, 133, 267, 533 and 1067 ms.
			if took := sixth.Sub(first); took < 2*time.Second {
				t.Errorf("the sixth call came %v after the first", took)
			}
		})
	}
	for name, later := range map[string]*nodelocalv1.Update{
		"a stream that goes on where it ended is tried soon":   increment("b"),
		"a server that restarts again and again is tried soon": full("a"),
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			target := serve(t, &script{calls: []play{func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
				if calls.Add(1) == 1 {
					send(full("a"))
				} else {
					send(later)
				}
				return errors.New("the server ends the stream")
			}}})
			var log lines
			runWith(t, target, log.logger())
			await.Until(t, "twelve calls", func() error {
				if n := calls.Load(); n < 12 {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
			for _, line := range log.with("No connection") {
				if !strings.Contains(line, `ms"`) {
					t.Errorf("the wait has grown: %s", line)
				}
			}
		})
	}
}

// TestClientOfAServerThatEndsStreamsAtOnce plays a server that ends each stream without an error after the full state.
func TestClientOfAServerThatEndsStreamsAtOnce(t *testing.T) {
	target := serve(t, &script{calls: []play{func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		send(full("a"))
		return nil
	}}})
	var log lines
	runWith(t, target, log.logger())
	await.Until(t, "a log line with a wait that has grown", func() error {
		for _, line := range log.with("No connection") {
			if strings.Contains(line, "the server ended the stream") && !strings.Contains(line, `ms"`) {
				return nil
			}
		}
		return errors.New("none")
	})
}

// TestClientRefused plays servers that give answers after which trying again does not help.
func TestClientRefused(t *testing.T) {
	refuse := func(code codes.Code) play {
		return func(*nodelocalv1.Position, func(...*nodelocalv1.Update)) error {
			return status.Error(code, "not you")
		}
	}
	for _, code := range []codes.Code{codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented} {
		t.Run(fmt.Sprintf("%s ends Run", code), func(t *testing.T) {
			t.Parallel()
			target := serve(t, &script{calls: []play{refuse(code)}})
			err := nodelocal.Run(t.Context(), target, &recorder{}, nodelocal.Options{Node: "n"})
			if !errors.Is(err, nodelocal.ErrRefused) || !strings.Contains(err.Error(), "not you") || !strings.Contains(err.Error(), target) {
				t.Errorf("error %v, want ErrRefused with the server's reason and address", err)
			}
			if got := status.Code(err); got != code {
				t.Errorf("its code is %s", got)
			}
		})
	}
	t.Run("a client with a state keeps it, logs an error and tries again", func(t *testing.T) {
		target := serve(t, &script{calls: []play{
			func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
				send(full("a"))
				return errors.New("the server ends the stream")
			},
			refuse(codes.PermissionDenied),
			func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
				send(increment("b"))
				select {}
			},
		}})
		var log lines
		runWith(t, target, log.logger()).await(t, "a b")
		if got := log.with("refuses this client"); len(got) != 1 || !strings.Contains(got[0], "PermissionDenied: not you") {
			t.Errorf("logged %q, want one error with the reason", got)
		}
	})
	t.Run("a client whose first state is held tries again", func(t *testing.T) {
		target := serve(t, &script{calls: []play{
			func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
				send(full())
				return errors.New("the server ends the stream")
			},
			refuse(codes.PermissionDenied),
			func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
				send(increment("a"))
				select {}
			},
		}})
		options := nodelocal.Options{Guard: &model.ListGuard{Before: func(string, bool) bool { return true }}}
		runWith(t, target, options).await(t, "a")
	})
	t.Run("other errors are tried again", func(t *testing.T) {
		target := serve(t, &script{calls: []play{
			refuse(codes.NotFound), refuse(codes.ResourceExhausted), refuse(codes.Internal),
			func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
				send(full("a"))
				select {}
			},
		}})
		runWith(t, target, nodelocal.Options{}).await(t, "a")
	})
}

func TestNewClient(t *testing.T) {
	for _, name := range []string{"Node-1", "node_1", "-node", "node.", "a..b", "node 1", "ünï", strings.Repeat("a", 254)} {
		if _, err := nodelocal.NewClient("unix:///run/s", nodelocal.Options{Node: name}); !errors.Is(err, nodelocal.ErrNode) {
			t.Errorf("node %q: error %v", name, err)
		}
	}
	for _, name := range []string{"", "n", "node-1", "node-1.example.com", strings.Repeat("a", 253)} {
		if _, err := nodelocal.NewClient("unix:///run/s", nodelocal.Options{Node: name}); err != nil {
			t.Errorf("node %q: %v", name, err)
		}
	}
	many := model.ServiceKeys{Labels: make([]string, 17)}
	if _, err := nodelocal.NewClient("unix:///run/s", nodelocal.Options{ServiceKeys: many}); err == nil || !strings.Contains(err.Error(), "17 keys") {
		t.Errorf("17 keys: error %v", err)
	}
}

// Whoever sets no Logger sees all the same why nothing happens.
func TestClientDefaultLogger(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	var log lines
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	target := "unix://" + filepath.Join(t.TempDir(), "nobody-listens")
	runWith(t, target, nodelocal.Options{})
	await.Until(t, "the default logger says that there is no server", func() error {
		if len(log.with(target)) == 0 {
			return errors.New("it does not")
		}
		return nil
	})
}

func testClientOfAServerThatWarns(t *testing.T) {
	warn := func(u *nodelocalv1.Update, text string) *nodelocalv1.Update {
		u.Sync.Warning = text
		return u
	}
	long := strings.Repeat("x", 5000)
	target := serve(t, &script{calls: []play{func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		send(warn(full("a"), "no Node n"), warn(increment("b"), "no Node n"), warn(increment("c"), long))
		select {}
	}}})
	var log lines
	runWith(t, target, log.logger()).await(t, "a b c")
	if got := log.with("no Node n"); len(got) != 1 {
		t.Errorf("logged %q, want the warning once", got)
	}
	if got := log.with("xxx"); len(got) != 1 || len(got[0]) > 1500 {
		t.Errorf("logged %.2000q, want the beginning of the long warning", got)
	}
}

// A server that is back is found by the first try, not by the second.
func testClientFindsAServerThatIsBack(t *testing.T) {
	target := "unix://" + filepath.Join(private.Dir(t), "s")
	var log lines
	backend := runWith(t, target, log.logger())
	failures := func() int { return len(log.with("No connection")) }
	var third time.Time // it was later than that
	await.Until(t, "three tries fail", func() error {
		now := time.Now()
		if n := failures(); n < 3 {
			third = now
			return fmt.Errorf("%d did", n)
		}
		return nil
	})
	serveAt(t, target, &script{calls: []play{func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		send(full("a"))
		select {}
	}}})
	failed := failures()
	if time.Since(third) > 250*time.Millisecond {
		failed++ // on a busy machine the next try, 267 ms after the third at the soonest, may have begun before the server was there
	}
	backend.await(t, "a")
	if n := failures(); n > failed {
		t.Errorf("%d more tries failed: %q", n-failed, log.with("No connection"))
	}
}

// runWith drives a recorder until the test ends.
func runWith(t *testing.T, target string, options nodelocal.Options) *recorder {
	t.Helper()
	options.Node = "n"
	r := &recorder{}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- nodelocal.Run(ctx, target, r, options) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}
