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
	// seen is the position of the last batch.
	seen *nodelocalv1.Position
	// pending is the result of the next Take; nil for none. If full is set, the next Take returns all.
	pending *model.Changes
	full    bool
	// triggers are the times of the events that led to pending, at most MaxTriggers.
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

// empty reports whether no batch has arrived yet. A held state counts as one.
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

// apply applies a complete batch, and adds its changes to pending.
func (s *state) apply(batch *model.Changes, sync *nodelocalv1.Sync) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil && !batch.Full {
		s.held.Merge(batch)
		batch = s.held
	}
	first := s.all == nil
	if first && !batch.Full {
		return errors.New("the server sent increments to a state that this client does not have")
	}
	if s.hold(batch) {
		s.setPosition(sync)
		return nil
	}
	all := s.all
	if first {
		all = &model.Changes{}
	}
	added, size := s.difference(all, batch)
	if err := s.limits.Check(size); err != nil {
		return fmt.Errorf("the state with all increments: %w", err)
	}
	s.all, s.size = all, size
	s.setPosition(sync)
	s.all.Merge(batch)
	if !first && added.Empty() {
		return nil
	}
	if !s.full {
		s.addPending(added)
	}
	times := protocol.DecodeTriggers(sync)
	s.triggers = append(s.triggers, times[:min(len(times), model.MaxTriggers-len(s.triggers))]...)
	s.signal()
	return nil
}

// hold reports whether a batch is a full state without a port that is not believed. It keeps such a state, because
// increments to it may follow.
func (s *state) hold(batch *model.Changes) bool {
	if !batch.Full {
		return false
	}
	s.held = nil
	if s.guard.Hold(s.all != nil && len(s.all.Ports) > 0, len(batch.Ports) > 0) {
		s.held = batch
	}
	return s.held != nil
}

// setPosition keeps the position of a batch, unless its instance is longer than the API allows: servers would refuse
// requests with it for their size.
func (s *state) setPosition(sync *nodelocalv1.Sync) {
	s.seen = sync.GetPosition()
	if len(s.seen.GetInstance()) > 64 {
		s.seen = nil
	}
}

// difference returns the changes of batch that all does not have, and the size of the state after them. Ports in batch
// that are equal to those in all become the same variable, the one that the backend has.
func (s *state) difference(all, batch *model.Changes) (added *model.Changes, size protocol.Limits) {
	added = &model.Changes{Ports: map[model.PortID]*model.ServicePort{}}
	size = s.size
	set := func(id model.PortID, old, port *model.ServicePort) {
		added.Ports[id] = port
		if old != nil {
			size.Ports--
			size.Addresses -= old.Addresses()
		}
		if port != nil {
			size.Ports++
			size.Addresses += port.Addresses()
		}
	}
	for id, port := range batch.Ports {
		old := all.Ports[id]
		if !port.Equal(old) {
			set(id, old, port)
		} else if port != nil {
			batch.Ports[id] = old
		}
	}
	if batch.Full {
		for id, old := range all.Ports {
			if batch.Ports[id] == nil {
				set(id, old, nil)
			}
		}
	}
	if batch.Node != nil && !batch.Node.Equal(all.Node) {
		added.Node = batch.Node
	}
	if batch.ServiceCIDRsChanged && !slices.Equal(batch.ServiceCIDRs, all.ServiceCIDRs) {
		added.ServiceCIDRs, added.ServiceCIDRsChanged = batch.ServiceCIDRs, true
	}
	return added, size
}

// maxPending bounds the changed ports of a backend that does not take them, beyond the number of all ports. If
// there are more, the full state replaces them.
const maxPending = 10_000

func (s *state) addPending(changes *model.Changes) {
	if s.pending == nil {
		s.pending = changes
	} else {
		s.pending.Merge(changes)
	}
	if len(s.pending.Ports) > len(s.all.Ports)+maxPending {
		s.pending, s.full = nil, true
	}
}

// take returns the pending changes, and the times of the events that led to them, oldest first.
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
