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

// directQueue stands where a controller of client-go has its queue and its store. It queues nothing and
// stores names alone: each object goes to the sink at once, which copies what it needs. An informer
// would keep every object a second time, and while it lists, a third time. From the names it knows what
// was deleted when the history that a watch continues is lost.
//
// A list goes to the sink when it is complete: a stream can break, and the server that answers next may lag behind, so
// parts of a list could take endpoints back in time. The first list goes to the sink object by object while it is
// streamed, because a sink publishes nothing before its end.
//
// What a list lacks may be held (model.ListGuard).
type directQueue[T metav1.Object] struct {
	resource string
	set      func(T)
	remove   func(namespace, name string)
	// serves says what an object serves (model.Losses).
	serves func(T) string
	// waiting, if set, is told why no list is believed yet, and "" when one is.
	waiting func(reason string)
	// details is Config.Details.
	details bool

	// mu guards what follows, and is held while the sink is told: losses may drop objects at any time.
	mu sync.Mutex
	// losses decides which objects go that a list lacks.
	losses *model.Losses[cache.ObjectName]
	// known holds the objects that the sink has, and what they serve.
	known map[cache.ObjectName]string
	// uid is that of default/kubernetes; empty before it was seen.
	uid types.UID

	listed, closed chan struct{}
	closedOnce     sync.Once
}

var (
	_ cache.Queue             = (*directQueue[metav1.Object])(nil)
	_ cache.TransformingStore = (*directQueue[metav1.Object])(nil)
)

// newDirectQueue returns a queue. Of options it sets Lock, Drop and Believed.
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

// Replace implements cache.Queue. The list holds objects, or the keys of those that the function of Transformer
// has published.
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
		list[i] = nil // the list is ours; let go of the object before the next is copied
	}
	q.losses.List(had, has, uid != "" && q.uid != uid)
	if !q.losses.Believed() {
		q.waiting(q.losses.Reason())
	}
	return nil
}

// believed says that everything is listed.
func (q *directQueue[T]) believed() {
	q.waiting("")
	close(q.listed)
}

// Transformer implements cache.TransformingStore. While a list is streamed, the reflector collects what this
// function returns: of the first list keys, because the function has published the objects; later trimmed objects.
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
