package tracker

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// maxTriggers is how many times are kept until a Sync succeeds: the oldest ones, because they tell the
// longest latency. There are more only if Syncs fail for long, or before Synced.
const maxTriggers = 10_000

// noteTrigger records the time of the event that led to a change of a slice. The EndpointSlice
// controller writes it into an annotation, for the network programming latency SLI. Events from
// before the start of this process do not count, because they tell nothing about its latency.
func (t *Tracker) noteTrigger(service objectName, annotations map[string]string) {
	text, ok := annotations[corev1.EndpointsLastChangeTriggerTime]
	if !ok || service == (objectName{}) {
		return
	}
	when, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !when.After(t.started) || t.triggerCount >= maxTriggers {
		return
	}
	t.triggers[service] = append(t.triggers[service], when)
	t.triggerCount++
}

// dropTriggers drops the times of one Service.
func (t *Tracker) dropTriggers(service objectName) {
	t.triggerCount -= len(t.triggers[service])
	delete(t.triggers, service)
}

// takeTriggers returns the recorded times in order and drops them.
func (t *Tracker) takeTriggers() []time.Time {
	if len(t.triggers) == 0 {
		return nil
	}
	var all []time.Time
	for _, times := range t.triggers {
		all = append(all, times...)
	}
	t.triggers, t.triggerCount = map[objectName][]time.Time{}, 0
	slices.SortFunc(all, time.Time.Compare)
	return all
}
