package apiserver

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

// calls is a sink that writes down what it is told.
type calls struct {
	mu  sync.Mutex
	all []string
}

func (c *calls) set(obj *corev1.Service)       { c.add("set " + obj.Name) }
func (c *calls) remove(namespace, name string) { c.add("remove " + namespace + "/" + name) }

func (c *calls) add(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, call)
}

func (c *calls) take() (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, c.all = c.all, nil
	return all
}

func TestDirectQueue(t *testing.T) {
	t.Run("passes on each event at once, and each list when it is complete", testDirectQueuePassesOn)
	t.Run("streams the first list", testDirectQueueStreamsTheFirstList)
	t.Run("survives a broken stream", testBrokenStream)
}

func testDirectQueuePassesOn(t *testing.T) {
	sink := &calls{}
	q := newDirectQueue(nil, model.LossesOptions[cache.ObjectName]{Resource: "services"}, sink.set, sink.remove, tracker.ServiceServes)
	check := func(step string, err error, want ...string) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", step, err)
		}
		if got := sink.take(); !slices.Equal(got, want) {
			t.Errorf("%s: the sink was told %q, want %q", step, got, want)
		}
	}
	streamed := func(name string) any {
		t.Helper()
		obj, err := q.Transformer()(service(name))
		check("streaming "+name, err)
		return obj
	}

	check("an empty queue", nil)
	if q.HasSynced() {
		t.Error("listed without a list")
	}
	check("a list", q.Replace([]any{service("a"), service("b")}, "1"), "set a", "set b")
	if !q.HasSynced() {
		t.Error("not listed after a list")
	}
	check("an event", q.Add(service("c")), "set c")
	check("an update", q.Update(service("a")), "set a")
	check("a deletion", q.Delete(service("b")), "remove default/b")
	check("a deletion of what is not there", q.Delete(service("b")))
	check("a list without c", q.Replace([]any{service("a")}, "2"), "set a", "remove default/c")
	check("a streamed list without a", q.Replace([]any{streamed("d"), streamed("e")}, "3"), "set d", "set e", "remove default/a")
	streamed("f") // and the stream breaks
	check("the deletion of d", q.Delete(service("d")), "remove default/d")
	check("a list after a broken stream", q.Replace([]any{service("e")}, "4"), "set e")
}

func testDirectQueueStreamsTheFirstList(t *testing.T) {
	sink := &calls{}
	q := newDirectQueue(nil, model.LossesOptions[cache.ObjectName]{Resource: "services"}, sink.set, sink.remove, tracker.ServiceServes)
	var list []any
	for _, name := range []string{"a", "b"} {
		key, err := q.Transformer()(service(name))
		again, errAgain := q.Transformer()(key)
		if err != nil || errAgain != nil || again != key {
			t.Errorf("streaming %s: %v, %v; a transformed object is transformed to %v, want %v as it is", name, err, errAgain, again, key)
		}
		list = append(list, key)
	}
	if got := sink.take(); !slices.Equal(got, []string{"set a", "set b"}) {
		t.Errorf("while the first list is streamed, the sink was told %q", got)
	}
	if err := q.Replace(list[:1], "1"); err != nil {
		t.Fatal(err)
	}
	if got := sink.take(); !slices.Equal(got, []string{"remove default/b"}) || !q.HasSynced() {
		t.Errorf("when it is complete, the sink was told %q", got)
	}
}

// A reflector hands over the first list while it streams. What was in a stream that broke, and is in no list
// afterwards, goes.
func testBrokenStream(t *testing.T) {
	sink := &calls{}
	q := newDirectQueue(nil, model.LossesOptions[cache.ObjectName]{Resource: "services"}, sink.set, sink.remove, tracker.ServiceServes)
	var starts int
	source := &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return nil, errors.New("only streams here")
		},
		WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
			starts++
			names := map[int][]string{1: {"gone", "kept"}, 2: {"kept", "new"}}[starts]
			stream := watch.NewFakeWithChanSize(len(names)+1, false)
			for i, name := range names {
				svc := service(name)
				svc.ResourceVersion = strconv.Itoa(10*starts + i)
				stream.Add(svc)
			}
			if starts == 1 {
				stream.Stop()
			} else {
				end := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
					ResourceVersion: "100", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
				}}
				stream.Action(watch.Bookmark, end)
			}
			return stream, nil
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	controller := cache.New(&cache.Config{Queue: q, ListerWatcher: source, ObjectType: &corev1.Service{}})
	running.Go(func() { controller.RunWithContext(ctx) })
	await.Receive(t, "the end of the first list", q.Done())
	want := []string{"set gone", "set kept", "set kept", "set new", "remove default/gone"}
	if got := sink.take(); !slices.Equal(got, want) {
		t.Errorf("the sink was told %q, want %q", got, want)
	}
}
