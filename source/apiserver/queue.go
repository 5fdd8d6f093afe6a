package apiserver

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// directQueue stands where a controller of client-go has its queue and its store. It queues nothing and
// stores names alone: each object goes to the sink at once, which copies what it needs. An informer
// would keep every object a second time, and while it lists, a third time.
//
// The names are needed when the history that a watch continues is lost: what a new list
// does not have was deleted meanwhile.
//
// A streamed list goes to the sink object by object too. If the stream breaks, the sink has a
// part of the list early. The list that follows corrects that: it brings the rest, and deletes what it does not have.
//
// The reflector calls from one goroutine. Only Close, Pop and the methods that ask whether
// everything is listed are called from others.
type directQueue[T metav1.Object] struct {
	resource string
	set      func(T)
	remove   func(namespace, name string)
	// details is Config.Details.
	details bool

	// known is what the sink has.
	known map[cache.ObjectName]struct{}

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
		known:    map[cache.ObjectName]struct{}{},
		listed:   make(chan struct{}),
		closed:   make(chan struct{}),
	}
}

// Add implements cache.Queue.
func (q *directQueue[T]) Add(obj any) error {
	_, err := q.publish(obj)
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
	listed := make(map[cache.ObjectName]struct{}, len(list))
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
		list[i] = nil // the list is ours; let go of the object before the next is copied
	}
	for name := range q.known {
		if _, found := listed[name]; !found {
			q.drop(name)
		}
	}
	q.listedOnce.Do(func() { close(q.listed) })
	return nil
}

// Transformer implements cache.TransformingStore. While a list is streamed, the reflector collects what this
// function returns, so the function publishes the object and returns a key.
func (q *directQueue[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return q.publish(obj) }
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
		q.known[name] = struct{}{}
	}
	return cache.ExplicitKey(name.String()), nil
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
