package model

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
)

// fakeFeed hands out what a test sets.
type fakeFeed struct {
	state   map[PortID]*ServicePort
	changes *Changes
	dirty   chan struct{}
}

func newFeed() *fakeFeed {
	return &fakeFeed{state: map[PortID]*ServicePort{}, changes: &Changes{Full: true}, dirty: make(chan struct{}, 1)}
}

func (f *fakeFeed) set(service string) {
	id := PortID{Service: service}
	f.state[id] = &ServicePort{ID: id}
	f.changes.Merge(&Changes{Ports: map[PortID]*ServicePort{id: f.state[id]}})
}

func (f *fakeFeed) delete(service string) {
	id := PortID{Service: service}
	delete(f.state, id)
	f.changes.Merge(&Changes{Ports: map[PortID]*ServicePort{id: nil}})
}

func (f *fakeFeed) Dirty() <-chan struct{} { return f.dirty }

func (f *fakeFeed) Take() (*Changes, []time.Time) {
	taken := f.changes
	f.changes = &Changes{}
	return taken, nil
}

func (f *fakeFeed) Resync() { f.changes = &Changes{Full: true, Ports: maps.Clone(f.state)} }

// fakeBackend keeps the names of the ports that it has.
type fakeBackend struct {
	broken bool
	has    map[PortID]bool
}

func (b *fakeBackend) Sync(_ context.Context, changes *Changes) error {
	if b.broken {
		return errors.New("broken")
	}
	if changes.Full {
		b.has = map[PortID]bool{}
	}
	for id, port := range changes.Ports {
		if port == nil {
			delete(b.has, id)
		} else {
			b.has[id] = true
		}
	}
	return nil
}

// interrupted is a Backend whose Sync ends with its context.
type interrupted struct{ begun chan struct{} }

func (b interrupted) Sync(ctx context.Context, _ *Changes) error {
	close(b.begun)
	<-ctx.Done()
	return ctx.Err()
}

func TestLoop(t *testing.T) {
	t.Run("bounds the pending changes", testPendingChangesAreBounded)
	t.Run("reports no failure of a Sync that its end interrupts", testInterruptedSyncIsNoFailure)
}

func testInterruptedSyncIsNoFailure(t *testing.T) {
	var log strings.Builder
	options := LoopOptions{
		Logger: funcr.New(func(_, line string) { fmt.Fprintln(&log, line) }, funcr.Options{}),
		OnSync: func(result SyncResult) { t.Errorf("a Sync is reported that ended with %v", result.Err) },
	}
	feed, backend := newFeed(), interrupted{begun: make(chan struct{})}
	feed.dirty <- struct{}{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- NewLoop(feed, backend, options).Run(ctx) }()
	<-backend.begun
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run returned %v", err)
	}
	if log.Len() > 0 {
		t.Errorf("log:\n%s", log.String())
	}
}

func testPendingChangesAreBounded(t *testing.T) {
	feed, backend := newFeed(), &fakeBackend{}
	feed.set("stays")
	loop := NewLoop(feed, backend, LoopOptions{})
	loop.collect()
	loop.sync(context.Background())
	backend.broken = true
	feed.set("changes")
	loop.collect()
	loop.sync(context.Background())
	for i := range 3 * maxPending {
		name := fmt.Sprint("goes-", i)
		feed.set(name)
		loop.collect()
		feed.delete(name)
		loop.collect()
		if n := len(loop.pending.Ports); n > maxPending+1 {
			t.Fatalf("%d changed ports are kept after %d Services came and went", n, i)
		}
	}
	backend.broken = false
	loop.sync(context.Background())
	if len(backend.has) != 2 {
		t.Errorf("the backend has %d ports, want 2", len(backend.has))
	}
}
