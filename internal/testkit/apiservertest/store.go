package apiservertest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// store keeps the objects and every change made to them. As in etcd, one counter numbers the
// changes of all kinds, so that versions compare across them.
type store struct {
	mu        sync.Mutex
	version   uint64
	compacted uint64 // watches cannot start before this version
	bookmarks uint64 // how many bookmarks every watch should have sent
	objects   map[*resource]map[string]Object
	changes   map[*resource][]change
	wake      chan struct{} // closed, and replaced, whenever a watch has something to do
}

// change is one write. Both objects are the store's own and are never modified.
type change struct {
	version  uint64
	old, new Object // nil old: created; nil new: deleted
}

func newStore() *store {
	return &store{
		version: 1, // 0 and "" mean "any version" to clients
		objects: map[*resource]map[string]Object{},
		changes: map[*resource][]change{},
		wake:    make(chan struct{}),
	}
}

func key(namespace, name string) string { return namespace + "/" + name }

// create stores a copy of obj and returns what it stored.
func (s *store) create(r *resource, obj Object) (Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[r][key(obj.GetNamespace(), obj.GetName())] != nil {
		return nil, apierrors.NewAlreadyExists(r.groupResource(), obj.GetName())
	}
	return s.put(r, nil, obj), nil
}

// update replaces an object. A resourceVersion in obj must be the stored one, as for any client.
func (s *store) update(r *resource, obj Object) (Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.objects[r][key(obj.GetNamespace(), obj.GetName())]
	if old == nil {
		return nil, apierrors.NewNotFound(r.groupResource(), obj.GetName())
	}
	if v := obj.GetResourceVersion(); v != "" && v != old.GetResourceVersion() {
		return nil, apierrors.NewConflict(r.groupResource(), obj.GetName(),
			fmt.Errorf("the object is at version %s, not %s", old.GetResourceVersion(), v))
	}
	return s.put(r, old, obj), nil
}

// put writes a copy of obj under the next version. The caller holds mu.
func (s *store) put(r *resource, old, obj Object) Object {
	stored := obj.DeepCopyObject().(Object)
	s.version++
	stored.SetResourceVersion(formatVersion(s.version))
	if old != nil {
		stored.SetUID(old.GetUID())
		stored.SetCreationTimestamp(old.GetCreationTimestamp())
	} else {
		stored.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", s.version)))
		stored.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	}
	if s.objects[r] == nil {
		s.objects[r] = map[string]Object{}
	}
	s.objects[r][key(stored.GetNamespace(), stored.GetName())] = stored
	s.record(r, change{s.version, old, stored})
	return stored.DeepCopyObject().(Object)
}

// remove deletes an object and returns its last state.
func (s *store) remove(r *resource, namespace, name string) (Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.objects[r][key(namespace, name)]
	if old == nil {
		return nil, apierrors.NewNotFound(r.groupResource(), name)
	}
	delete(s.objects[r], key(namespace, name))
	s.version++
	s.record(r, change{s.version, old, nil})
	return old.DeepCopyObject().(Object), nil
}

func (s *store) record(r *resource, c change) {
	s.changes[r] = append(s.changes[r], c)
	s.wakeWatches()
}

// wakeWatches makes every watch look again. The caller holds mu.
func (s *store) wakeWatches() {
	close(s.wake)
	s.wake = make(chan struct{})
}

// get returns a copy of one object.
func (s *store) get(r *resource, namespace, name string) (Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	obj := s.objects[r][key(namespace, name)]
	if obj == nil {
		return nil, apierrors.NewNotFound(r.groupResource(), name)
	}
	return obj.DeepCopyObject().(Object), nil
}

// snapshot returns copies of the objects that match, sorted by name, and the version of that view.
func (s *store) snapshot(r *resource, match func(Object) bool) ([]Object, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []Object
	for _, obj := range s.objects[r] {
		if match(obj) {
			found = append(found, obj.DeepCopyObject().(Object))
		}
	}
	slices.SortFunc(found, func(a, b Object) int {
		return strings.Compare(key(a.GetNamespace(), a.GetName()), key(b.GetNamespace(), b.GetName()))
	})
	return found, s.version
}

// news has the changes that a watch has not seen yet.
type news struct {
	changes   []change
	version   uint64          // the version that the watch has reached with these changes
	bookmarks uint64          // how many bookmarks it should have sent by then
	more      <-chan struct{} // closed when there is something new
}

// since returns what happened to a resource after a version, which may be one to come. As with a real server, nothing
// up to that version is news then.
func (s *store) since(r *resource, version uint64) news {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.changes[r]
	first, _ := slices.BinarySearchFunc(all, version+1, func(c change, v uint64) int {
		return int(int64(c.version) - int64(v))
	})
	return news{slices.Clone(all[first:]), max(s.version, version), s.bookmarks, s.wake}
}

// compact makes everything before the current version unknown to watches that start from now on.
// Open watches go on, as they do at a real server that has sent them everything.
func (s *store) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted = s.version
}

// bookmark asks every watch to send a bookmark.
func (s *store) bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bookmarks++
	s.wakeWatches()
}

// versions returns the current version and the one that history starts at.
func (s *store) versions() (current, compacted uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version, s.compacted
}

// event is the change as a watch with that selection sees it: an object that stops matching is
// deleted for this watch, one that starts matching is added.
func (c change) event(match func(Object) bool) (watch.Event, bool) {
	was := c.old != nil && match(c.old)
	is := c.new != nil && match(c.new)
	switch {
	case is && was:
		return watch.Event{Type: watch.Modified, Object: c.new.DeepCopyObject()}, true
	case is:
		return watch.Event{Type: watch.Added, Object: c.new.DeepCopyObject()}, true
	case was:
		last := c.old.DeepCopyObject().(Object)
		last.SetResourceVersion(formatVersion(c.version))
		return watch.Event{Type: watch.Deleted, Object: last}, true
	default:
		return watch.Event{}, false
	}
}

func formatVersion(v uint64) string { return strconv.FormatUint(v, 10) }
