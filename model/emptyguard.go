package model

import (
	"errors"

	"github.com/go-logr/logr"
)

// EmptyGuard keeps a source from believing that there are no Services at all. Every cluster has the Service
// default/kubernetes, so a list or full state without any Service port means that the source does not see them: the
// storage of the API server was wiped, its permissions show nothing, a folder was emptied. While there are Services in
// force, such a state is held: it is not applied. Deletions that come one by one are believed.
// The zero value believes an empty state at the start, and none after another one.
type EmptyGuard struct {
	// Off believes everything. It is for proxies with a service-proxy-name: a cluster may have no Service for them.
	Off bool
	// Before reports whether an earlier process left a resource in force: its "services", or the endpoints of its
	// "endpointslices". It is called for an empty state while no state was believed yet. Nil means no.
	Before func(resource string) bool
	// OnHeld, if set, is called with a reason when a state without a resource ("services", "endpointslices") begins to be
	// held, and with an empty one when that is over. The resource is "manifests" while a directory that was read before is
	// missing or unreadable. OnHeld may be called from several goroutines, and must not block.
	OnHeld func(resource, reason string)
}

// EmptyState is the decision of an EmptyGuard about one resource. It is for one goroutine at a time.
type EmptyState struct {
	guard    EmptyGuard
	resource string
	logger   logr.Logger
	// believed says that a state was believed.
	believed, held bool
}

// State returns a new decision about a resource, which logs when holding begins and ends.
func (g EmptyGuard) State(resource string, logger logr.Logger) *EmptyState {
	return &EmptyState{guard: g, resource: resource, logger: logger}
}

// Hold decides about a full state: it reports whether the state must not be applied. had says whether the last state
// has objects that count, has whether the new one does.
func (e *EmptyState) Hold(had, has bool) bool {
	hold := !has && !e.guard.Off && (had || !e.believed && e.guard.Before != nil && e.guard.Before(e.resource))
	e.believed = e.believed || !hold
	if hold == e.held {
		return hold
	}
	e.held = hold
	reason := ""
	if hold {
		reason = "the source has none, but every cluster has some"
		e.logger.Error(errors.New(reason), "Not believing an empty state; the last one stays in force until an object appears. kube-proxy --cleanup empties a node on purpose", "resource", e.resource)
	} else {
		e.logger.Info("The source has objects again; following it", "resource", e.resource)
	}
	if e.guard.OnHeld != nil {
		e.guard.OnHeld(e.resource, reason)
	}
	return hold
}
