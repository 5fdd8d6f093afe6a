package metrics

import (
	"time"

	"k8s.io/component-base/metrics"

	"github.com/nftproxy/nftproxy/model"
)

var (
	syncDuration = newFamilyDuration("sync_proxy_rules_duration_seconds",
		"Seconds that a sync took, from the changes to the kernel's answer")
	fullSyncDuration = newFamilyDuration("sync_full_proxy_rules_duration_seconds",
		"Seconds that a full sync took, such as the first one")
	partialSyncDuration = newFamilyDuration("sync_partial_proxy_rules_duration_seconds",
		"Seconds that a sync took that was not full")

	lastSync = newGaugeVec("sync_proxy_rules_last_timestamp_seconds",
		"Time when a sync last succeeded", ipFamily)
	lastQueued = newGaugeVec("sync_proxy_rules_last_queued_timestamp_seconds",
		"Time when a sync was last requested", ipFamily)
	syncFailures = newCounterVec("sync_proxy_rules_nftables_sync_failures_total",
		"Syncs that failed; each is tried again", ipFamily)
	cleanupFailures = newCounterVec("sync_proxy_rules_nftables_cleanup_failures_total",
		"Always 0, since chains are deleted in the transaction of the sync", ipFamily)
	programmingDuration = newHistogramVec("network_programming_duration_seconds", "Seconds from the change of a pod or Service to the rules in the kernel",
		metrics.MergeBuckets(
			metrics.LinearBuckets(0.25, 0.25, 2), metrics.LinearBuckets(1, 1, 59),
			metrics.LinearBuckets(60, 5, 12), metrics.LinearBuckets(120, 30, 7)),
		ipFamily)
)

// newFamilyDuration has buckets from 1 ms to 16 s, as in kube-proxy.
func newFamilyDuration(name, help string) *metrics.HistogramVec {
	return newHistogramVec(name, help, metrics.ExponentialBuckets(0.001, 2, 15), ipFamily)
}

// ObserveQueued records that a sync is needed (model.LoopOptions.OnQueued).
func ObserveQueued() {
	eachFamily(func(family string) { lastQueued.WithLabelValues(family).SetToCurrentTime() })
}

// ports holds the result of the syncs so far about traffic policy Local.
var ports = unserved{}

// ObserveSync records a sync (model.LoopOptions.OnSync). Calls must not overlap.
func ObserveSync(r model.SyncResult) {
	observeBoth(syncDuration, r.Duration.Seconds())
	if r.Changes.Full {
		observeBoth(fullSyncDuration, r.Duration.Seconds())
	} else {
		observeBoth(partialSyncDuration, r.Duration.Seconds())
	}
	if r.Err != nil {
		eachFamily(func(family string) { syncFailures.WithLabelValues(family).Inc() })
		return
	}
	eachFamily(func(family string) { lastSync.WithLabelValues(family).SetToCurrentTime() })
	for _, trigger := range r.Triggers {
		observeBoth(programmingDuration, time.Since(trigger).Seconds())
	}
	ports.apply(r.Changes)
	ports.show()
}

var noLocalEndpoints = newGaugeVec("sync_proxy_rules_no_local_endpoints_total",
	"Service ports with traffic policy Local that have endpoints, but none on this node", "traffic_policy", ipFamily)

// unserved holds the ports that drop traffic under policy Local for want of a local endpoint. A port without any
// endpoint refuses traffic, so it does not count.
type unserved map[model.PortID]*model.ServicePort

// apply adds changes after their sync.
func (u unserved) apply(changes *model.Changes) {
	if changes.Full {
		clear(u)
	}
	for id, port := range changes.Ports {
		delete(u, id)
		if port != nil && (port.InternalPolicy == model.PolicyLocal || port.ExternalPolicy == model.PolicyLocal) &&
			len(port.Local) == 0 && len(port.Cluster) > 0 {
			u[id] = port
		}
	}
}

// show sets the metric.
func (u unserved) show() {
	for _, family := range model.Families {
		internal, external := 0, 0
		for id, p := range u {
			if id.Family == family && p.InternalPolicy == model.PolicyLocal {
				internal++
			}
			if id.Family == family && p.ExternalPolicy == model.PolicyLocal {
				external++
			}
		}
		noLocalEndpoints.WithLabelValues("internal", family.String()).Set(float64(internal))
		noLocalEndpoints.WithLabelValues("external", family.String()).Set(float64(external))
	}
}
