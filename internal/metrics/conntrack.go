package metrics

import (
	"time"

	"k8s.io/component-base/metrics"

	"github.com/nftproxy/nftproxy/model"
)

var (
	conntrackDuration = newFamilyDuration("conntrack_reconciler_sync_duration_seconds", "Seconds that it took to find and delete stale connection tracking entries")
	conntrackDeleted  = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "conntrack_reconciler_deleted_entries_total",
		Help: "Stale connection tracking entries that were deleted", StabilityLevel: metrics.ALPHA,
	}, []string{ipFamily})
	conntrackFailures = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "conntrack_reconciler_failures_total",
		Help: "Searches for stale connection tracking entries that failed, or left entries that the kernel refused to delete; each is tried again", StabilityLevel: metrics.ALPHA,
	}, []string{ipFamily})
)

// ObserveConntrack records a search for stale entries of a family in the connection tracking table.
func ObserveConntrack(family model.Family, took time.Duration, deleted int) {
	conntrackDuration.WithLabelValues(family.String()).Observe(took.Seconds())
	conntrackDeleted.WithLabelValues(family.String()).Add(float64(deleted))
}

// CountConntrackFailure counts a search for stale entries of a family that could not remove all of them.
func CountConntrackFailure(family model.Family) {
	conntrackFailures.WithLabelValues(family.String()).Inc()
}
