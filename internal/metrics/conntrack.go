package metrics

import (
	"time"

	"github.com/nftproxy/nftproxy/model"
)

var (
	conntrackDuration = newFamilyDuration("conntrack_reconciler_sync_duration_seconds", "Seconds that it took to find and delete stale connection tracking entries")
	conntrackDeleted  = newCounterVec("conntrack_reconciler_deleted_entries_total", "Stale connection tracking entries that were deleted", ipFamily)
	conntrackFailures = newCounterVec("conntrack_reconciler_failures_total", "Searches for stale connection tracking entries that failed, or left entries that the kernel refused to delete; each is tried again", ipFamily)
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
