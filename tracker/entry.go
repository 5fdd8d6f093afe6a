package tracker

import (
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// entry holds the Service and the EndpointSlices of one Service name. Either may be missing.
type entry struct {
	service *service
	// slices is sorted by name.
	slices []*endpointSlice

	// changed is the revision of the last change to the entry; prev and next are the neighbours in the changeLog.
	changed    uint64
	prev, next *entry
	// index is the entry's place in View.published.
	index uint32
	// hasTombstone says that the entry is in changeLog.tombstones.
	hasTombstone bool
	// served is nil unless views of several nodes are possible.
	served *served
}

// served is the part of an entry for Trackers of many nodes.
type served struct {
	// byZone holds the ports of the Service, at revision, for all nodes that its endpoints do not name, neither as their
	// node nor in a hint. Topology may make them different by zone.
	byZone   map[string]*published
	revision uint64
	// before holds those of the previous revision, for zones that are not in byZone yet.
	before map[string]*published
	// gone holds the last ports that the Service lost.
	gone []gonePort
}

// forMany returns served, and makes it if there is none.
func (e *entry) forMany() *served {
	if e.served == nil {
		e.served = &served{}
	}
	return e.served
}

// gonePort is a port that a Service has lost, at a revision.
type gonePort struct {
	id       model.PortID
	revision uint64
}

// maxGone is how many lost ports are remembered of one Service.
const maxGone = 64

// empty reports whether nothing belongs to the name any more.
func (e *entry) empty() bool { return e.service == nil && len(e.slices) == 0 }

// published holds the ports of one Service as one node or several nodes see them. It is never modified.
type published struct {
	// ports is sorted by ID.
	ports []*model.ServicePort
}

func (p *published) list() []*model.ServicePort {
	if p == nil {
		return nil
	}
	return p.ports
}

// names reports whether an endpoint of e is on the node, or meant for it.
func (e *entry) names(node string) bool {
	return slices.ContainsFunc(e.slices, func(s *endpointSlice) bool { return s.codeOf(node) != noNode })
}

// zoned reports whether endpoints are meant for zones.
func (e *entry) zoned() bool {
	return slices.ContainsFunc(e.slices, func(s *endpointSlice) bool {
		return slices.ContainsFunc(s.hints, func(h hint) bool { return len(h.zones) > 0 })
	})
}

func findPort(ports []*model.ServicePort, id model.PortID) (int, bool) {
	return slices.BinarySearchFunc(ports, id, func(p *model.ServicePort, id model.PortID) int { return p.ID.Compare(id) })
}

// noteGone records the ports that a Service loses, for views that resume.
func (t *Tracker) noteGone(e *entry, now *service) {
	if t.options.History == 0 || e.service == nil {
		return
	}
	revision := t.changes.revision + 1 // that of the change to come
	s := e.forMany()
	for i := range e.service.ports {
		id := e.service.ports[i].ID
		stays := now != nil && slices.ContainsFunc(now.ports, func(p model.ServicePort) bool { return p.ID == id })
		if !stays {
			s.gone = append(s.gone, gonePort{id, revision})
		}
	}
	if extra := len(s.gone) - maxGone; extra > 0 {
		t.changes.raiseHorizon(s.gone[extra-1].revision)
		s.gone = slices.Clone(s.gone[extra:])
	}
}
