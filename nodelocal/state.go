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

// state is the last state of a server, with the changes for the backend.
type state struct {
	wake   chan struct{}
	limits protocol.Limits

	mu sync.Mutex
	// all is the full state, held ports included; nil before the first batch.
	all *model.Changes
	// size counts the ports and addresses of all.
	size protocol.Limits
	// losses decides about ports that a full state lacks. The backend gets nothing before a full state is believed.
	losses *model.Losses[model.PortID]
	// seen is the position of the last batch.
	seen *nodelocalv1.Position
	// pending is the result of the next Take; nil for none. If full is set, the next Take returns all.
	pending *model.Changes
	full    bool
	// triggers are the times of the events behind pending, at most MaxTriggers.
	triggers []time.Time
}

func newState(o *Options) *state {
	s := &state{wake: make(chan struct{}, 1), limits: o.Limits, full: true}
	s.losses = model.NewLosses(o.Guard, model.LossesOptions[model.PortID]{
		Resource: "services", Awaited: true, MayBeEmpty: o.ServiceProxyName != "", Logger: o.Logger,
		Lock: &s.mu, Drop: s.drop, Believed: s.signal,
	})
	return s
}

func (s *state) position() *nodelocalv1.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// empty reports whether no batch has arrived yet. A full state that is not believed counts as a batch.
func (s *state) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all == nil
}

// resetPosition makes the next server send everything.
func (s *state) resetPosition() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = nil
}

// apply applies a complete batch, and adds its changes to pending.
func (s *state) apply(batch *model.Changes, message *nodelocalv1.Sync) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.all == nil
	if first && !batch.Full {
		return errors.New("the server sent increments to a state that this client does not have")
	}
	if first {
		s.all = &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{}}
	}
	if batch.Full {
		s.losses.List(served(s.all.Ports), served(batch.Ports), false)
		rest := *batch // missing ports are deleted, or held
		rest.Full, batch = false, &rest
	}
	added, size := s.difference(batch)
	if s.limits.Check(size) != nil {
		s.losses.Believe() // makes room for the server's ports
		added, size = s.difference(batch)
	}
	if err := s.limits.Check(size); err != nil {
		return fmt.Errorf("the state with all increments: %w", err)
	}
	s.setPosition(message)
	if first || !added.Empty() {
		times := protocol.DecodeTriggers(message)
		s.triggers = append(s.triggers, times[:min(len(times), model.MaxTriggers-len(s.triggers))]...)
		s.change(batch, added, size)
	}
	s.follow(batch)
	return nil
}

// follow reports to losses what the server has set and deleted.
func (s *state) follow(batch *model.Changes) {
	if s.losses.Reason() == "" {
		return
	}
	for id, port := range batch.Ports {
		if port == nil {
			s.losses.Delete(id)
		} else {
			s.losses.Set(id, serves(port))
		}
	}
}

// served returns what each port serves (model.Losses).
func served(ports map[model.PortID]*model.ServicePort) map[model.PortID]string {
	all := make(map[model.PortID]string, len(ports))
	for id, port := range ports {
		all[id] = serves(port)
	}
	return all
}

func serves(port *model.ServicePort) string {
	if name := port.ID.Namespace + "/" + port.ID.Service; name == model.Kubernetes {
		return name
	}
	return port.ClusterIP.String()
}

// drop deletes a port that a full state lacks.
func (s *state) drop(id model.PortID) {
	gone := &model.Changes{Ports: map[model.PortID]*model.ServicePort{id: nil}}
	added, size := s.difference(gone)
	s.change(gone, added, size)
}

// change applies changes to all; added are its new ports, and size is the size afterwards.
func (s *state) change(changes, added *model.Changes, size protocol.Limits) {
	s.size = size
	s.all.Merge(changes)
	if !s.full {
		s.addPending(added)
	}
	s.signal()
}

// setPosition keeps the position of a batch, unless its instance is longer than the API allows: servers would refuse a
// request with it.
func (s *state) setPosition(message *nodelocalv1.Sync) {
	s.seen = message.GetPosition()
	if len(s.seen.GetInstance()) > 64 {
		s.seen = nil
	}
}

// difference returns the changes of batch that all does not have, and the size of the state after them. A port in batch
// that equals its value in all becomes the backend's variable.
func (s *state) difference(batch *model.Changes) (added *model.Changes, size protocol.Limits) {
	added = &model.Changes{Ports: map[model.PortID]*model.ServicePort{}}
	size = s.size
	for id, port := range batch.Ports {
		old := s.all.Ports[id]
		if port.Equal(old) {
			if port != nil {
				batch.Ports[id] = old
			}
			continue
		}
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
	if batch.Node != nil && !batch.Node.Equal(s.all.Node) {
		added.Node = batch.Node
	}
	if batch.ServiceCIDRsChanged && !slices.Equal(batch.ServiceCIDRs, s.all.ServiceCIDRs) {
		added.ServiceCIDRs, added.ServiceCIDRsChanged = batch.ServiceCIDRs, true
	}
	return added, size
}

// maxPending bounds the pending ports of a slow backend, beyond the number of all ports. If there are more, the full
// state replaces them.
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

// take returns the pending changes, and the times of the events behind them, oldest first.
func (s *state) take() (*model.Changes, []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.pending
	if s.full && s.losses.Believed() {
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
