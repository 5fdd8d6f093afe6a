package apiserver

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/nftproxy/nftproxy/model"
)

// directQueue stands where a controller of client-go has its queue and its store. It queues nothing and
// stores names alone: each object goes to the sink at once, which copies what it needs. An informer
// would keep every object a second time, and while it lists, a third time.
//
// The names are needed when the history that a watch continues is lost: what a new list
// does not have was deleted meanwhile.
//
// A list goes to the sink when it is complete: a stream can break, and the server that answers next may lag behind, so
// parts of a list could take endpoints back in time. The first list is an exception, because a sink publishes nothing
// before that: it goes to the sink object by object while it is streamed, and no copy is kept.
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

	// known is what the sink has, and whether it counts. counting is how many do.
	known    map[cache.ObjectName]bool
	counting int
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
	key, err := q.publish(obj)
	if err == nil && q.absent != nil && q.counted(key) {
		q.empty.Hold(true, true)
		q.believe()
	}
	return err
}

// counted reports whether a known object counts.
func (q *directQueue[T]) counted(key cache.ExplicitKey) bool {
	name, err := cache.ParseObjectName(string(key))
	return err == nil && q.known[name]
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
	listed := make(map[cache.ObjectName]struct{}, len(list))
	had, has := q.counting > 0, false
	for i, obj := range list {
		key, err := q.publish(obj)
		if err != nil {
			return err
		}
		name, err := cache.ParseObjectName(string(key))
		if err != nil {
			return err
		}
		listed[name] = struct{}{}
		has = has || q.known[name]
		list[i] = nil // the list is ours; let go of the object before the next is copied
	}
	q.absent = map[cache.ObjectName]struct{}{}
	for name := range q.known {
		if _, found := listed[name]; !found {
			q.absent[name] = struct{}{}
		}
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
			return q.publish(obj)
		}
		trim(typed, q.details)
		return typed, nil
	}
}

// publish passes an object to the sink and returns its key. It returns a key as it is.
func (q *directQueue[T]) publish(obj any) (cache.ExplicitKey, error) {
	if key, ok := obj.(cache.ExplicitKey); ok {
		return key, nil
	}
	name, err := cache.ObjectToName(obj)
	if err != nil {
		return "", err
	}
	if typed, ok := obj.(T); ok {
		trim(typed, q.details)
		q.set(typed)
		q.note(name, q.counts == nil || q.counts(typed))
	}
	return cache.ExplicitKey(name.String()), nil
}

// note notes that the sink has an object.
func (q *directQueue[T]) note(name cache.ObjectName, counts bool) {
	q.uncount(name)
	q.known[name] = counts
	if counts {
		q.counting++
	}
	delete(q.absent, name)
}

func (q *directQueue[T]) uncount(name cache.ObjectName) {
	if q.known[name] {
		q.counting--
	}
}

func (q *directQueue[T]) drop(name cache.ObjectName) {
	if _, found := q.known[name]; found {
		q.uncount(name)
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
