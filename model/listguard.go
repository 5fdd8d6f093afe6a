package model

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Kubernetes is what the objects of the Service default/kubernetes serve (Losses). An API server makes this Service by
// itself within seconds, also after its storage was wiped. So its presence proves nothing about the others.
const Kubernetes = "default/kubernetes"

// ListGuard keeps sources from believing what a list lacks, where the list is not plausible. A list is everything that
// a source has: an answer of an API server, the content of a directory, the full state of a node-local server. What it
// adds and changes is applied at once. What it lacks is believed at once too, unless the list
//
//   - lacks everything that served before, or more than four in five of at least twenty, or
//   - has the Service default/kubernetes with another UID: another cluster, or a new storage of the API server.
//
// Then what it lacks is held: it stays in force for Patience. While the list has nothing, or nothing but
// default/kubernetes, there is no limit; Patience begins with the first other object. Later lists do not prolong it.
// What comes back, or is replaced, is no longer held. Believe ends all holds.
//
// Deletions that a watch reports one by one are believed, to the last.
//
// One guard is for all resources of a process. The zero value works: it believes a first list, whatever it lacks.
type ListGuard struct {
	// Patience is the time for which objects are held; 0 means DefaultPatience.
	Patience time.Duration
	// Before reports whether an earlier process left in force what a first list lacks: "services", or the endpoints of
	// "endpointslices". kubernetes says that the list has those of default/kubernetes, which then do not count. Before is
	// called for each list without any others, until one is believed. Nil means no.
	Before func(resource string, kubernetes bool) bool
	// OnHeld, if set, is called with the reason when objects of a resource begin to be held, when the reason changes, and
	// with an empty one when that is over. It may be called from several goroutines, and must not block.
	OnHeld func(resource, reason string)

	mu sync.Mutex
	// lists are those that Believe ends.
	lists []interface{ believe() bool }
	// held has the reason for each resource that is held.
	held map[string]string
}

// DefaultPatience is the time for which a ListGuard without Patience holds objects.
const DefaultPatience = 10 * time.Minute

// Held returns "resource: reason" for each resource that is held, sorted.
func (g *ListGuard) Held() (all []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for resource, reason := range g.held {
		all = append(all, resource+": "+reason)
	}
	slices.SortFunc(all, strings.Compare)
	return all
}

// Believe makes the last list of each resource count as it is. It reports whether something was held.
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

// tell records why a resource is held; an empty reason says that it is not.
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
