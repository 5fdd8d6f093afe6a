package nodelocal

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/internal/protocol"
	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// state is the last state of a server, with the changes that the backend does not have yet.
type state struct {
	wake   chan struct{}
	limits protocol.Limits

	mu sync.Mutex
	// all is the full state; nil before the first batch.
	all *model.Changes
	// size counts the ports and addresses of all.
	size protocol.Limits
	// guard decides about full states without a port. held is the server's state while such a one is held; nil for none.
	guard *model.EmptyState
	held  *model.Changes
	// seen is where the server is.
	seen *nodelocalv1.Position
	// pending is what Take hands out next; nil is nothing. It is all if full is set.
	pending *model.Changes
	full    bool
	// triggers is when the events happened that led to pending, at most MaxTriggers.
	triggers []time.Time
}

func newState(limits protocol.Limits, guard *model.EmptyState) state {
	return state{wake: make(chan struct{}, 1), limits: limits, full: true, guard: guard}
}

func (s *state) position() *nodelocalv1.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// empty reports whether no batch has arrived yet. A state that is held is one.
func (s *state) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all == nil && s.held == nil
}

// resetPosition makes the next server send everything.
func (s *state) resetPosition() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = nil
}

// maxInstance is how many bytes the API allows in Position.instance. To name a longer one would be a request that
// servers refuse for its size, also the next server, which does not know it.
const maxInstance = 64

// apply applies a complete batch. It adds to pending what the batch changes.
func (s *state) apply(batch *model.Changes, sync *nodelocalv1.Sync) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil && !batch.Full {
		s.held.Merge(batch)
		batch = s.held
	}
	if s.all == nil && !batch.Full {
		return errors.New("the server sent increments to a state that this client does not have")
	}
	if s.hold(batch, sync) {
		return nil
	}
	news := batch
	if s.all != nil {
		news = s.news(batch)
	}
	size := s.sizeWith(news)
	if err := s.limits.Check(size); err != nil {
		return fmt.Errorf("the state with all increments: %w", err)
	}
	s.size = size
	s.setPosition(sync)
	if s.all == nil {
		s.all = batch
		s.note(sync)
		s.signal()
		return nil
	}
	s.all.Merge(batch)
	if news.Empty() {
		return nil
	}
	if !s.full {
		s.addPending(news)
	}
	s.note(sync)
	s.signal()
	return nil
}

// hold reports whether a batch is a full state without a port that is not believed. It keeps such a state, because
// increments to it may follow.
func (s *state) hold(batch *model.Changes, sync *nodelocalv1.Sync) bool {
	if !batch.Full {
		return false
	}
	s.held = nil
	if !s.guard.Hold(s.all != nil && len(s.all.Ports) > 0, len(batch.Ports) > 0) {
		return false
	}
	s.held = batch
	s.setPosition(sync)
	return true
}

func (s *state) setPosition(sync *nodelocalv1.Sync) {
	s.seen = sync.GetPosition()
	if len(s.seen.GetInstance()) > maxInstance {
		s.seen = nil
	}
}

// note keeps when the events happened that led to what is pending: the oldest, which tell how long the worst took.
func (s *state) note(sync *nodelocalv1.Sync) {
	times := protocol.DecodeTriggers(sync)
	s.triggers = append(s.triggers, times[:min(len(times), model.MaxTriggers-len(s.triggers))]...)
}

// news returns what batch changes.
func (s *state) news(batch *model.Changes) *model.Changes {
	news := &model.Changes{Ports: map[model.PortID]*model.ServicePort{}}
	for id, port := range batch.Ports {
		old := s.all.Ports[id]
		switch {
		case port == nil && old == nil:
		case port != nil && old != nil && port.Equal(old):
			// One copy of it is enough, the one that the backend has.
			batch.Ports[id] = old
		default:
			news.Ports[id] = port
		}
	}
	if batch.Full {
		for id := range s.all.Ports {
			if batch.Ports[id] == nil {
				news.Ports[id] = nil
			}
		}
	}
	if batch.Node != nil && !sameNode(batch.Node, s.all.Node) {
		news.Node = batch.Node
	}
	if batch.ServiceCIDRsChanged && !slices.Equal(batch.ServiceCIDRs, s.all.ServiceCIDRs) {
		news.ServiceCIDRs, news.ServiceCIDRsChanged = batch.ServiceCIDRs, true
	}
	return news
}

// sizeWith returns the size of the state after news.
func (s *state) sizeWith(news *model.Changes) protocol.Limits {
	size := s.size
	for id, port := range news.Ports {
		if port != nil {
			size.Ports++
			size.Addresses += port.Addresses()
		}
		if s.all == nil {
			continue
		}
		if old := s.all.Ports[id]; old != nil {
			size.Ports--
			size.Addresses -= old.Addresses()
		}
	}
	return size
}

func sameNode(a, b *model.Node) bool {
	return a.Name == b.Name && a.GoingAway == b.GoingAway && slices.Equal(a.IPs, b.IPs) && slices.Equal(a.PodCIDRs, b.PodCIDRs)
}

// maxPending is by how many the changed ports may exceed the ports, for a backend that does not take them. If there are
// more, the full state replaces them.
const maxPending = 10_000

func (s *state) addPending(news *model.Changes) {
	if s.pending == nil {
		s.pending = news
	} else {
		s.pending.Merge(news)
	}
	if len(s.pending.Ports) > len(s.all.Ports)+maxPending {
		s.pending, s.full = nil, true
	}
}

// take returns what is pending, and when the events happened that led to it, oldest first.
func (s *state) take() (*model.Changes, []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.pending
	if s.full && s.all != nil {
		all := *s.all
		all.Ports = maps.Clone(s.all.Ports)
		taken, s.full = &all, false
	}
	triggers := s.triggers
	s.pending, s.triggers = nil, nil
	slices.SortFunc(triggers, time.Time.Compare)
	return taken, triggers
}

func (s *state) resync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending, s.full = nil, true
	if s.all != nil {
		s.signal()
	}
}

func (s *state) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
