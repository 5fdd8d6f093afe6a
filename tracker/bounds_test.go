package tracker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/model"
)

// triggered sets a slice as if an event of that time had led to it.
func triggered(tracker *Tracker, i int, when time.Time) {
	s := sliceOf(pod(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), ""))
	s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: when.Format(time.RFC3339Nano)}
	tracker.SetEndpointSlice(s)
}

func testTriggersAreBounded(t *testing.T) {
	start := time.Now().Add(time.Hour)
	t.Run("in a Tracker that nobody asks", func(t *testing.T) {
		tracker := New(Options{})
		for i := range model.MaxTriggers + 100 {
			triggered(tracker, i, start.Add(time.Duration(i)))
		}
		tracker.Synced()
		_, triggers := tracker.Take()
		if len(triggers) != model.MaxTriggers || !triggers[0].Equal(start) {
			t.Errorf("%d triggers from %v, want the oldest %d from %v", len(triggers), triggers[0], model.MaxTriggers, start)
		}
		t.Run("and there is room again when they were taken", func(t *testing.T) {
			triggered(tracker, 1<<20, start)
			if _, triggers := tracker.Take(); len(triggers) != 1 {
				t.Errorf("%d triggers, want 1", len(triggers))
			}
		})
	})
	t.Run("in a Tracker whose slices go", func(t *testing.T) {
		tracker := New(Options{})
		for i := range model.MaxTriggers {
			triggered(tracker, i, start)
		}
		s := sliceOf()
		tracker.DeleteEndpointSlice(s.Namespace, s.Name)
		triggered(tracker, 1, start)
		tracker.Synced()
		if _, triggers := tracker.Take(); len(triggers) != 1 {
			t.Errorf("%d triggers, want 1", len(triggers))
		}
	})
	t.Run("in a Loop whose Syncs fail", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tracker, _ := newSynced(makeService())
			backend := &fakeBackend{}
			backend.broken.Store(true)
			var last model.SyncResult
			runLoop(t, tracker, backend, model.LoopOptions{OnSync: func(r model.SyncResult) { last = r }})
			begin := time.Now().Add(time.Millisecond)
			for i := range model.MaxTriggers + 100 {
				triggered(tracker, i, begin.Add(time.Duration(i)))
				if i%1000 == 0 {
					pass(time.Minute)
				}
			}
			pass(time.Minute)
			backend.broken.Store(false)
			pass(time.Minute)
			if last.Err != nil || len(last.Triggers) != model.MaxTriggers || !last.Triggers[0].Equal(begin) {
				t.Errorf("%v with %d triggers, want none and %d", last.Err, len(last.Triggers), model.MaxTriggers)
			}
		})
	})
}
