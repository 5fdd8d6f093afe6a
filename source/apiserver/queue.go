package apiserver

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/nftproxy/nftproxy/model"
)

// directQueue stands where a controller of client-go has its queue and its store. It queues nothing and
// stores names alone: each object goes to the sink at once, which copies what it needs. An informer
// would keep every object a second time, and while it lists, a third time. From the names it knows what
// was deleted when the history that a watch continues is lost.
//
// A list goes to the sink when it is complete: a stream can break, and the server that answers next may lag behind, so
// parts of a list could take endpoints back in time. The first list goes to the sink object by object while it is
// streamed, because a sink publishes nothing before its end.
//
// The reflector calls from one goroutine. Only Close, Pop and the methods that ask whether
// everything is listed are called from others.
type directQueue[T metav1.Object] struct {
	resource string
	set      func(T)
	remove   func(namespace, name string)
	// details is Config.Details.
	details bool

	// empty decides whether an empty list is believed; nil believes every list. counts tells the objects without which
	// a list counts as empty; nil is all.
	empty  *model.EmptyState
	counts func(T) bool

	// known holds the objects that the sink has, and whether they count.
	known map[cache.ObjectName]bool
	// absent holds the known objects that a list lacks that is held.
	absent map[cache.ObjectName]struct{}

	listed, closed         chan struct{}
	listedOnce, closedOnce sync.Once
}

var (
	_ cache.Queue             = (*directQueue[metav1.Object])(nil)
	_ cache.TransformingStore = (*directQueue[metav1.Object])(nil)
)

func newDirectQueue[T metav1.Object](resource string, set func(T), remove func(namespace, name string)) *directQueue[T] {
	return &directQueue[T]{
		resource: resource,
		set:      set,
		remove:   remove,
		known:    map[cache.ObjectName]bool{},
		listed:   make(chan struct{}),
		closed:   make(chan struct{}),
	}
}

// Add implements cache.Queue. The first object that counts ends that a list is held.
func (q *directQueue[T]) Add(obj any) error {
	name, err := q.publish(obj)
	if err == nil && q.absent != nil && q.known[name] {
		q.empty.Hold(true, true)
		q.believe()
	}
	return err
}

// Update implements cache.Queue.
func (q *directQueue[T]) Update(obj any) error { return q.Add(obj) }

// Delete implements cache.Queue.
func (q *directQueue[T]) Delete(obj any) error {
	name, err := cache.DeletionHandlingObjectToName(obj)
	if err == nil {
		q.drop(name)
	}
	return err
}

// Replace implements cache.Queue. The list holds objects, or the keys of those that the function of Transformer
// has published.
func (q *directQueue[T]) Replace(list []any, _ string) error {
	q.absent = make(map[cache.ObjectName]struct{}, len(q.known))
	had, has := false, false
	for name, counts := range q.known {
		q.absent[name] = struct{}{}
		had = had || counts
	}
	for i, obj := range list {
		name, err := q.publish(obj)
		if err != nil {
			return err
		}
		delete(q.absent, name)
		has = has || q.known[name]
		list[i] = nil // the list is ours; let go of the object before the next is copied
	}
	if q.empty == nil || !q.empty.Hold(had, has) {
		q.believe()
	}
	return nil
}

// believe drops what the last list lacks. From then on everything is listed.
func (q *directQueue[T]) believe() {
	for name := range q.absent {
		q.drop(name)
	}
	q.absent = nil
	q.listedOnce.Do(func() { close(q.listed) })
}

// Transformer implements cache.TransformingStore. While a list is streamed, the reflector collects what this
// function returns: of the first list keys, because the function has published the objects; later trimmed objects.
func (q *directQueue[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		typed, ok := obj.(T)
		if !ok || !cache.IsDone(q) {
			name, err := q.publish(obj)
			return cache.ExplicitKey(name.String()), err
		}
		trim(typed, q.details)
		return typed, nil
	}
}

// publish passes an object to the sink and returns its name. It only parses a key.
func (q *directQueue[T]) publish(obj any) (cache.ObjectName, error) {
	if key, ok := obj.(cache.ExplicitKey); ok {
		return cache.ParseObjectName(string(key))
	}
	name, err := cache.ObjectToName(obj)
	if typed, ok := obj.(T); ok && err == nil {
		trim(typed, q.details)
		q.set(typed)
		q.known[name] = q.counts == nil || q.counts(typed)
		delete(q.absent, name)
	}
	return name, err
}

func (q *directQueue[T]) drop(name cache.ObjectName) {
	if _, found := q.known[name]; found {
		delete(q.known, name)
		q.remove(name.Namespace, name.Name)
	}
}

// Resync implements cache.Queue. A sink keeps what it was given.
func (q *directQueue[T]) Resync() error { return nil }

// Pop implements cache.Queue. There is never anything to pop.
func (q *directQueue[T]) Pop(cache.PopProcessFunc) (any, error) {
	<-q.closed
	return nil, cache.ErrFIFOClosed
}

// Close implements cache.Queue.
func (q *directQueue[T]) Close() { q.closedOnce.Do(func() { close(q.closed) }) }

// HasSynced implements cache.Queue.
func (q *directQueue[T]) HasSynced() bool { return cache.IsDone(q) }

// HasSyncedChecker implements cache.Queue.
func (q *directQueue[T]) HasSyncedChecker() cache.DoneChecker { return q }

// Name implements cache.DoneChecker.
func (q *directQueue[T]) Name() string { return q.resource }

// Done implements cache.DoneChecker: everything that existed has been published.
func (q *directQueue[T]) Done() <-chan struct{} { return q.listed }

// byName adapts the deletion of an object that has no namespace.
func byName(remove func(name string)) func(namespace, name string) {
	return func(_, name string) { remove(name) }
}
