package model

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// Losses decides for a ListGuard about one resource of a source. K names an object. An object serves something: an
// EndpointSlice its Service, a Service its ClusterIP, an object of default/kubernetes serves Kubernetes. Objects that
// serve the same replace each other: a missing object is no loss if another object in the list serves the same. An object
// that serves nothing ("") is never held.
//
// The caller of each method holds LossesOptions.Lock.
type Losses[K comparable] struct {
	guard   *ListGuard
	options LossesOptions[K]

	// believed says that a list was believed. Before the first one no object is in force, so none can be lost.
	believed bool
	// reason says why objects are held, or why no list is believed yet; else it is empty.
	reason string
	// lacks is the part of the reason about the last list.
	lacks string
	// held maps objects that the last list lacks, and that stay, to what they serve. byServed is the reverse, and may
	// have names of objects that are no longer held.
	held     map[K]string
	byServed map[string][]K
	// until is the end of the hold, at which timer fires; zero while the hold has no end.
	until time.Time
	timer *time.Timer
}

// LossesOptions describes one resource of a source.
type LossesOptions[K comparable] struct {
	// Resource is the name of the resource, such as "services".
	Resource string
	// Awaited says that the source publishes nothing before a list of the resource is believed (ListGuard.Before).
	Awaited bool
	// MayBeEmpty says that an empty list is plausible, as for the Services of a service-proxy-name: it is believed as a
	// first list, and later after Patience.
	MayBeEmpty bool
	// Logger logs when objects begin and cease to be held.
	Logger logr.Logger
	// Lock guards the Losses, and the state that Drop and Believed change.
	Lock sync.Locker
	// Drop deletes an object that a list lacks. It is called with Lock held.
	Drop func(K)
	// Believed, if set, is called once, with Lock held, when a list is believed for the first time.
	Believed func()
}

// NewLosses returns the Losses of a resource. Nil stands for a new guard.
func NewLosses[K comparable](guard *ListGuard, options LossesOptions[K]) *Losses[K] {
	l := &Losses[K]{guard: cmp.Or(guard, &ListGuard{}), options: options}
	l.guard.add(l)
	return l
}

// Believed reports whether a list was believed.
func (l *Losses[K]) Believed() bool { return l.believed }

// Reason says why objects are held, or why no list is believed yet; else it is empty.
func (l *Losses[K]) Reason() string { return l.reason }

// returned is the log line at the end of a hold that needed no patience.
const returned = "The source has what a list lacked, or has replaced it"

// minServed is the number of objects from which the loss of most of them is implausible.
const minServed = 20

// List decides about a list, after the source has published its additions. had and has map objects to what they serve:
// the objects of the source before, held objects included, and the objects of the list. otherStorage says that
// default/kubernetes has another UID than before.
func (l *Losses[K]) List(had, has map[K]string, otherStorage bool) {
	before, now, lost := served(had), served(has), map[K]string{}
	for key, serves := range had {
		_, listed := has[key]
		switch {
		case listed:
		case l.believed && serves != "" && !now[serves]:
			lost[key] = serves
		default:
			l.options.Drop(key)
		}
	}
	if !l.believed {
		l.first(now)
		return
	}
	missing := served(lost)
	l.lacks = fmt.Sprintf("the source lacks %d of %d", len(missing), len(before))
	if otherStorage {
		l.lacks += " and is another cluster or has a new storage, by the UID of default/kubernetes"
	}
	all := len(missing) == len(before) || others(before) > 0 && others(missing) == others(before)
	most := others(before) >= minServed && others(missing)*5 > others(before)*4
	if len(lost) > 0 && (all || most || otherStorage || l.held != nil) {
		l.hold(lost, others(now) > 0 || l.options.MayBeEmpty)
		return
	}
	for key := range lost {
		l.options.Drop(key)
	}
	l.release(returned)
}

// first decides about a list while none was believed.
func (l *Losses[K]) first(now map[string]bool) {
	if before := l.guard.Before; before != nil && l.options.Awaited && !l.options.MayBeEmpty &&
		others(now) == 0 && before(l.options.Resource, now[Kubernetes]) {
		l.tell("the source has none, but the rules in force have some")
		return
	}
	l.release(returned)
}

// hold keeps the objects that the last list lacks. some says that the list has objects other than default/kubernetes.
func (l *Losses[K]) hold(lost map[K]string, some bool) {
	l.held, l.byServed = lost, map[string][]K{}
	for key, serves := range lost {
		l.byServed[serves] = append(l.byServed[serves], key)
	}
	if !some {
		l.stop()
	}
	l.limit(some)
}

// limit starts Patience if some is set and Patience has not started, and reports the hold.
func (l *Losses[K]) limit(some bool) {
	patience := cmp.Or(l.guard.Patience, DefaultPatience)
	if some && l.until.IsZero() {
		l.until = time.Now().Add(patience)
		l.timer = time.AfterFunc(patience, l.expire)
	}
	if l.until.IsZero() {
		l.tell(fmt.Sprintf("%s; what it lacks stays until %v after it has others", l.lacks, patience))
	} else {
		l.tell(l.lacks + "; what it lacks stays until " + l.until.UTC().Format(time.RFC3339))
	}
}

// Set records an object that a watch reported and the source has published.
func (l *Losses[K]) Set(key K, serves string) {
	if l.reason == "" {
		return
	}
	delete(l.held, key)
	for _, other := range l.byServed[serves] {
		if l.held[other] == serves && serves != "" {
			delete(l.held, other)
			l.options.Drop(other)
		}
	}
	some := serves != "" && serves != Kubernetes
	switch {
	case !l.believed && some:
		l.release(returned)
	case l.believed && len(l.held) == 0:
		l.release(returned)
	case l.believed && some:
		l.limit(true)
	}
}

// Delete records an object that a watch reported as deleted and the source has deleted.
func (l *Losses[K]) Delete(key K) {
	if delete(l.held, key); l.believed && len(l.held) == 0 {
		l.release(returned)
	}
}

// Believe applies the last list as it is.
func (l *Losses[K]) Believe() {
	if l.reason == "" {
		return
	}
	for key := range l.held {
		l.options.Drop(key)
	}
	l.release("Believing what a list lacks")
}

// believe is Believe for a caller without the lock. It reports whether objects were held.
func (l *Losses[K]) believe() bool {
	l.options.Lock.Lock()
	defer l.options.Lock.Unlock()
	held := l.reason != ""
	l.Believe()
	return held
}

// expire ends the hold when its time is over.
func (l *Losses[K]) expire() {
	l.options.Lock.Lock()
	defer l.options.Lock.Unlock()
	if !l.until.IsZero() && !time.Now().Before(l.until) { // else the timer was stopped too late
		l.Believe()
	}
}

// release ends a hold: no object is held, and the last list is believed.
func (l *Losses[K]) release(how string) {
	l.stop()
	l.held, l.byServed = nil, nil
	if l.reason != "" {
		l.options.Logger.Info(how, "resource", l.options.Resource)
		l.tell("")
	}
	if l.believed {
		return
	}
	l.believed = true
	if l.options.Believed != nil {
		l.options.Believed()
	}
}

// stop removes the end of a hold.
func (l *Losses[K]) stop() {
	l.until = time.Time{}
	if l.timer != nil {
		l.timer.Stop()
	}
}

// tell logs a new reason, and passes it on.
func (l *Losses[K]) tell(reason string) {
	if l.reason == reason {
		return
	}
	if l.reason = reason; reason != "" {
		l.options.Logger.Error(errors.New(reason), "Not believing what a list lacks", "resource", l.options.Resource)
	}
	l.guard.tell(l.options.Resource, reason)
}

// served returns the set of things that objects serve.
func served[K comparable](objects map[K]string) map[string]bool {
	all := map[string]bool{}
	for _, serves := range objects {
		if serves != "" {
			all[serves] = true
		}
	}
	return all
}

// others counts the served things other than Kubernetes.
func others(served map[string]bool) int {
	if served[Kubernetes] {
		return len(served) - 1
	}
	return len(served)
}
