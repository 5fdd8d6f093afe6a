package tracker

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// noteTrigger remembers when the event happened that led to a change of a slice. The
// EndpointSlice controller says so in an annotation, for the network programming latency
// SLI. What happened before this process started says nothing about this process.
func (t *Tracker) noteTrigger(service objectName, annotations map[string]string) {
	text, ok := annotations[corev1.EndpointsLastChangeTriggerTime]
	if !ok || service == (objectName{}) {
		return
	}
	when, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !when.After(t.started) {
		return
	}
	t.triggers[service] = append(t.triggers[service], when)
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
	t.triggers = map[objectName][]time.Time{}
	slices.SortFunc(all, time.Time.Compare)
	return all
}
