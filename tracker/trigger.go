package tracker

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// maxTriggers is how many times are kept for views that have not taken them: the oldest ones, because they tell the
// longest latency. There are more only if Syncs fail for long, or before Synced.
const maxTriggers = 10_000

// prunePeriod is the least time between two looks at which times all views have taken, while maxTriggers are kept.
const prunePeriod = time.Second

// trigger is the time of the event that led to a change of a slice, and the revision of that change.
type trigger struct {
	revision uint64
	when     time.Time
}

// triggers is the times that a view may still take, by the entry of their Service.
type triggers struct {
	of     map[*entry][]trigger
	count  int
	pruned time.Time
}

// noteTrigger records the time of the event that led to the latest change of a Service's slices. The EndpointSlice
// controller writes it into an annotation, for the network programming latency SLI. Events from
// before the start of this process do not count, because they tell nothing about its latency. Without a Service, e is
// nil.
func (t *Tracker) noteTrigger(e *entry, annotations map[string]string) {
	text, ok := annotations[corev1.EndpointsLastChangeTriggerTime]
	if !ok || e == nil {
		return
	}
	when, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !when.After(t.started) {
		return
	}
	if t.triggers.count >= maxTriggers && time.Since(t.triggers.pruned) >= prunePeriod {
		t.pruneTriggers()
	}
	if t.triggers.count >= maxTriggers {
		return
	}
	if t.triggers.of == nil {
		t.triggers.of = map[*entry][]trigger{}
	}
	t.triggers.of[e] = append(t.triggers.of[e], trigger{e.changed, when})
	t.triggers.count++
}

// pruneTriggers drops the times that all views have taken.
func (t *Tracker) pruneTriggers() {
	t.triggers.pruned = time.Now()
	taken := t.changes.revision
	for v := range t.views {
		taken = min(taken, v.timed)
	}
	for e, list := range t.triggers.of {
		kept := slices.DeleteFunc(list, func(tr trigger) bool { return tr.revision <= taken })
		t.triggers.count -= len(list) - len(kept)
		if len(kept) == 0 {
			delete(t.triggers.of, e)
		} else {
			t.triggers.of[e] = kept
		}
	}
}

// dropTriggers drops the times of one Service. Without a Service, e is nil.
func (t *Tracker) dropTriggers(e *entry) {
	t.triggers.count -= len(t.triggers.of[e])
	delete(t.triggers.of, e)
}

// appendTriggers appends to times those of an entry that the view has not taken yet.
func (v *View) appendTriggers(times []time.Time, e *entry) []time.Time {
	for _, tr := range v.tracker.triggers.of[e] {
		if tr.revision > v.timed {
			times = append(times, tr.when)
		}
	}
	return times
}

// tookTriggers notes that the view has taken all times until now. Only views of other nodes may resume
// and take some again, so a Tracker of one node drops them.
func (v *View) tookTriggers() {
	t := v.tracker
	v.timed = t.changes.revision
	if v == t.own && len(t.views) == 1 {
		t.triggers = triggers{}
	}
}
