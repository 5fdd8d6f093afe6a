package nodelocal_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodelocal"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// play serves one call of Watch. Sending ends when the client disconnects.
type play = func(seen *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error

// script is a server that plays what a test wrote: one function for each call of Watch; the last one is
// played again for all calls after it.
type script struct {
	nodelocalv1.UnimplementedNodeLocalServer
	mu    sync.Mutex
	calls []play
}

// Watch implements nodelocalv1.NodeLocalServer.
func (s *script) Watch(request *nodelocalv1.WatchRequest, out grpc.ServerStreamingServer[nodelocalv1.Update]) error {
	s.mu.Lock()
	play := s.calls[0]
	if len(s.calls) > 1 {
		s.calls = s.calls[1:]
	}
	s.mu.Unlock()
	return play(request.GetLastSeen(), func(updates ...*nodelocalv1.Update) {
		for _, u := range updates {
			if out.Send(u) != nil {
				return
			}
		}
	})
}

// serve plays a script until the test ends.
func serve(t *testing.T, s *script) (target string) {
	t.Helper()
	target = "unix://" + filepath.Join(private.Dir(t), "s")
	serveAt(t, target, s)
	return target
}

// serveAt plays a script at target until the test ends.
func serveAt(t *testing.T, target string, s *script) {
	t.Helper()
	listener, err := server.Listen(t.Context(), target, false)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	nodelocalv1.RegisterNodeLocalServer(g, s)
	go g.Serve(listener)
	t.Cleanup(g.Stop)
}

// recorder keeps what it is told, as text, and how often it was told something.
type recorder struct {
	mu    sync.Mutex
	ports map[string]bool
	syncs int
}

// Sync implements model.Backend.
func (r *recorder) Sync(_ context.Context, changes *model.Changes) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if changes.Full || r.ports == nil {
		r.ports = map[string]bool{}
	}
	for id, port := range changes.Ports {
		if port == nil {
			delete(r.ports, id.Service)
		} else {
			r.ports[id.Service] = true
		}
	}
	r.syncs++
	return nil
}

func (r *recorder) has() (ports string, syncs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(r.ports)), " "), r.syncs
}

// port is the port of a Service, with a ClusterIP of its own.
func port(name string) *nodelocalv1.ServicePort {
	sum := crc32.ChecksumIEEE([]byte(name))
	return &nodelocalv1.ServicePort{
		Id:        &nodelocalv1.PortID{Service: name, Protocol: nodelocalv1.Protocol_PROTOCOL_TCP, Family: nodelocalv1.Family_FAMILY_IPV4},
		ClusterIp: fmt.Sprintf("10.%d.%d.%d", byte(sum>>16), byte(sum>>8), byte(sum)), Port: 80,
	}
}

// full is a batch with the full state, increment one without.
func full(names ...string) *nodelocalv1.Update {
	u := increment(names...)
	u.Full, u.Node, u.ServiceCidrs = true, &nodelocalv1.Node{Name: "n"}, &nodelocalv1.ServiceCIDRs{}
	return u
}

func increment(names ...string) *nodelocalv1.Update {
	u := &nodelocalv1.Update{Sync: &nodelocalv1.Sync{Position: &nodelocalv1.Position{Instance: "i", Revision: 1}}}
	for _, name := range names {
		u.Set = append(u.Set, port(name))
	}
	return u
}

func unfinished(u *nodelocalv1.Update) *nodelocalv1.Update {
	u.Sync = nil
	return u
}

// testClientOfABadServer plays servers that break the protocol. A backend never acts on what they broke, and has the
// right state as soon as a server keeps to it.
func testClientOfABadServer(t *testing.T) {
	ended := errors.New("the server ends the stream")
	good := func(seen *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
		if len(seen.GetInstance()) > 64 {
			return errors.New("a request that no server accepts")
		}
		send(full("a", "b"))
		select {}
	}
	for _, tt := range []struct {
		name string
		bad  play
		// before is the state that the backend has from the bad server.
		before string
	}{
		{"increments before any state", func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
			send(increment("x"))
			return ended
		}, ""},
		{"the stream ends in the middle of a batch", func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
			send(full("a"), unfinished(increment("x")))
			return ended
		}, "a"},
		{"a batch without an end is followed by a full state", func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
			send(full("a"), unfinished(increment("x")), full("y"))
			return ended
		}, "a"},
		{"a port that is none", func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
			u := increment("x", "y")
			u.Set[1].ClusterIp = "nonsense"
			send(full("a"), u)
			return ended
		}, "a"},
		{"a full state without a node", func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
			u := full("x")
			u.Node = nil
			send(u)
			return ended
		}, ""},
		{"no position", func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
			u := full("a")
			u.Sync.Position = nil
			send(u)
			return ended
		}, "a"},
		{"a position of a megabyte", func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
			u := full("a")
			u.Sync.Position.Instance = strings.Repeat("x", 1<<20)
			send(u)
			return ended
		}, "a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			goOn := make(chan struct{})
			target := serve(t, &script{calls: []play{tt.bad, func(seen *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
				<-goOn
				return good(seen, send)
			}}})
			backend := runWith(t, target, nodelocal.Options{})
			if tt.before != "" {
				backend.await(t, tt.before)
			} else {
				time.Sleep(100 * time.Millisecond)
			}
			if ports, _ := backend.has(); ports != tt.before {
				t.Errorf("the backend has %q, want %q", ports, tt.before)
			}
			close(goOn)
			backend.await(t, "a b")
		})
	}
	t.Run("repeated batches are no changes", func(t *testing.T) {
		target := serve(t, &script{calls: []play{func(_ *nodelocalv1.Position, send func(...*nodelocalv1.Update)) error {
			for range 100 {
				send(full("a", "b"), increment("b"))
			}
			send(increment("c"))
			select {}
		}}})
		backend := runWith(t, target, nodelocal.Options{})
		backend.await(t, "a b c")
		if _, syncs := backend.has(); syncs > 2 {
			t.Errorf("%d Syncs for two states", syncs)
		}
	})
}

// await waits until the backend has the ports.
func (r *recorder) await(t *testing.T, want string) {
	t.Helper()
	await.Until(t, "the backend has "+want, func() error {
		if ports, _ := r.has(); ports != want {
			return fmt.Errorf("it has %q", ports)
		}
		return nil
	})
}
