package tracker

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// maxTriggers is how many times are remembered until a Sync succeeds. The oldest are kept: they tell
// how long the worst took. More come only when Syncs fail for long, or nothing is synced yet.
const maxTriggers = 10_000

// noteTrigger remembers when the event happened that led to a change of a slice. The
// EndpointSlice controller says so in an annotation, for the network programming latency
// SLI. What happened before this process started says nothing about this process.
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

// forgetTriggers forgets the times of one Service.
func (t *Tracker) forgetTriggers(service objectName) {
	t.triggerCount -= len(t.triggers[service])
	delete(t.triggers, service)
}

// takeTriggers returns the remembered times in order and forgets them.
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
