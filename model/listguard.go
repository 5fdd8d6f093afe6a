package model

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Kubernetes is what objects of the Service default/kubernetes serve (Losses). An API server with a wiped storage makes
// this Service within seconds, so its presence proves nothing about other objects.
const Kubernetes = "default/kubernetes"

// ListGuard protects sources from implausible lists, such as the empty list of an API server with a wiped storage. A
// list is everything that a source has: the answer of an API server, the content of a directory, the full state of a
// node-local server. Sources apply additions and changes at once. They delete missing objects at once too, unless the
// list
//
//   - lacks everything that served before, or more than four in five of at least twenty, or
//   - has the Service default/kubernetes with another UID: another cluster, or a new storage of the API server.
//
// Then the missing objects are held: they stay in force for Patience. While the list is empty, or has nothing but
// default/kubernetes, there is no limit; Patience begins with the first other object. Later lists do not prolong it. An
// object that comes back, or is replaced, is no longer held. Believe ends all holds.
//
// Sources apply deletions that a watch reports one by one, to the last.
//
// A process has one guard for all resources. The zero value believes a first list, whatever it lacks.
type ListGuard struct {
	// Patience is the time for which objects are held; 0 means DefaultPatience.
	Patience time.Duration
	// Before reports whether an earlier process left objects of the resource in force: "services", or the endpoints of
	// "endpointslices". kubernetes says that the list has default/kubernetes, which then does not count. Before is
	// called for each list without other objects, until a list is believed. Nil means no.
	Before func(resource string, kubernetes bool) bool
	// OnHeld, if set, is called with the reason when objects of a resource begin to be held, when the reason changes,
	// and with an empty reason when the hold ends. It may be called from several goroutines, and must not block.
	OnHeld func(resource, reason string)

	mu sync.Mutex
	// lists are the resources whose holds Believe ends.
	lists []interface{ believe() bool }
	// held has the reason for each resource with held objects.
	held map[string]string
}

// DefaultPatience is the time for which a ListGuard without Patience holds objects.
const DefaultPatience = 10 * time.Minute

// Held returns "resource: reason" for each resource with held objects, sorted.
func (g *ListGuard) Held() (all []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for resource, reason := range g.held {
		all = append(all, resource+": "+reason)
	}
	slices.SortFunc(all, strings.Compare)
	return all
}

// Believe applies the last list of each resource as it is. It reports whether objects were held.
func (g *ListGuard) Believe() (held bool) {
	g.mu.Lock()
	lists := slices.Clone(g.lists)
	g.mu.Unlock()
	for _, l := range lists {
		held = l.believe() || held
	}
	return held
}

func (g *ListGuard) add(list interface{ believe() bool }) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lists = append(g.lists, list)
}

// tell records why objects of a resource are held; an empty reason ends the hold.
func (g *ListGuard) tell(resource, reason string) {
	g.mu.Lock()
	if g.held == nil {
		g.held = map[string]string{}
	}
	delete(g.held, resource)
	if reason != "" {
		g.held[resource] = reason
	}
	g.mu.Unlock()
	if g.OnHeld != nil {
		g.OnHeld(resource, reason)
	}
}
