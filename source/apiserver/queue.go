package apiserver

import (
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

// directQueue takes the place of the queue and the store in a controller of client-go. It queues nothing and stores
// names alone: it passes each object to the sink at once, which copies the parts that it needs. An informer would keep
// every object a second time, and a third time during a list. The names show which objects were deleted when a watch's
// history is lost.
//
// The sink gets a list when it is complete: a stream can break, and the next server may lag behind, so parts of a list
// could take endpoints back in time. It gets the first list object by object during the stream, because a sink
// publishes nothing before the end.
//
// Objects that a list lacks may be held (model.ListGuard).
type directQueue[T metav1.Object] struct {
	resource string
	set      func(T)
	remove   func(namespace, name string)
	// serves says what an object serves (model.Losses).
	serves func(T) string
	// waiting, if set, is called with the reason why no list is believed yet, and with "" when one is.
	waiting func(reason string)
	// details is Config.Details.
	details bool

	// mu guards the fields below, and is held during calls of the sink: losses may drop objects at any time.
	mu sync.Mutex
	// losses decides about objects that a list lacks.
	losses *model.Losses[cache.ObjectName]
	// known maps the objects of the sink to what they serve.
	known map[cache.ObjectName]string
	// uid is the UID of default/kubernetes; empty before the first one.
	uid types.UID

	listed, closed chan struct{}
	closedOnce     sync.Once
}

var (
	_ cache.Queue             = (*directQueue[metav1.Object])(nil)
	_ cache.TransformingStore = (*directQueue[metav1.Object])(nil)
)

// newDirectQueue returns a queue. It sets Lock, Drop and Believed of options.
func newDirectQueue[T metav1.Object](
	guard *model.ListGuard, options model.LossesOptions[cache.ObjectName], set func(T), remove func(namespace, name string), serves func(T) string,
) *directQueue[T] {
	q := &directQueue[T]{
		resource: options.Resource,
		set:      set,
		remove:   remove,
		serves:   serves,
		waiting:  func(string) {},
		known:    map[cache.ObjectName]string{},
		listed:   make(chan struct{}),
		closed:   make(chan struct{}),
	}
	options.Lock, options.Drop, options.Believed = &q.mu, q.drop, q.believed
	q.losses = model.NewLosses(guard, options)
	return q
}

// Add implements cache.Queue.
func (q *directQueue[T]) Add(obj any) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	name, err := q.publish(obj)
	if err == nil {
		q.losses.Set(name, q.known[name])
	}
	return err
}

// Update implements cache.Queue.
func (q *directQueue[T]) Update(obj any) error { return q.Add(obj) }

// Delete implements cache.Queue.
func (q *directQueue[T]) Delete(obj any) error {
	name, err := cache.DeletionHandlingObjectToName(obj)
	if err == nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.drop(name)
		q.losses.Delete(name)
	}
	return err
}

// Replace implements cache.Queue. The list holds objects, or the keys of objects that Transformer's function has
// published.
func (q *directQueue[T]) Replace(list []any, _ string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	had, has, uid := maps.Clone(q.known), make(map[cache.ObjectName]string, len(list)), q.uid
	for i, obj := range list {
		name, err := q.publish(obj)
		if err != nil {
			return err
		}
		has[name] = q.known[name]
		list[i] = nil // frees the object before the next is copied
	}
	q.losses.List(had, has, uid != "" && q.uid != uid)
	if !q.losses.Believed() {
		q.waiting(q.losses.Reason())
	}
	return nil
}

// believed records that everything is listed.
func (q *directQueue[T]) believed() {
	q.waiting("")
	close(q.listed)
}

// Transformer implements cache.TransformingStore. During a streamed list the reflector collects the results of this
// function: keys for the first list, because the function has published the objects; later trimmed objects.
func (q *directQueue[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		q.mu.Lock()
		defer q.mu.Unlock()
		typed, ok := obj.(T)
		if !ok || !cache.IsDone(q) {
			name, err := q.publish(obj)
			return cache.ExplicitKey(name.String()), err
		}
		trim(typed, q.details)
		return typed, nil
	}
}

// publish passes an object to the sink and returns its name. It only parses a key. It needs mu.
func (q *directQueue[T]) publish(obj any) (cache.ObjectName, error) {
	if key, ok := obj.(cache.ExplicitKey); ok {
		return cache.ParseObjectName(string(key))
	}
	name, err := cache.ObjectToName(obj)
	if typed, ok := obj.(T); ok && err == nil {
		trim(typed, q.details)
		q.set(typed)
		q.known[name] = q.serves(typed)
		if tracker.IsKubernetes(typed) {
			q.uid = typed.GetUID()
		}
	}
	return name, err
}

// drop needs mu.
func (q *directQueue[T]) drop(name cache.ObjectName) {
	if _, found := q.known[name]; found {
		delete(q.known, name)
		q.remove(name.Namespace, name.Name)
	}
}

// Resync implements cache.Queue. A sink keeps its objects.
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

// Done implements cache.DoneChecker: all existing objects have been published.
func (q *directQueue[T]) Done() <-chan struct{} { return q.listed }

// byName adapts the deletion of an object without a namespace.
func byName(remove func(name string)) func(namespace, name string) {
	return func(_, name string) { remove(name) }
}
