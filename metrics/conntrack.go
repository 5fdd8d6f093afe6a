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
)

// ObserveConntrack records a search for stale entries of a family in the connection tracking table.
func ObserveConntrack(family model.Family, took time.Duration, deleted int) {
	conntrackDuration.WithLabelValues(family.String()).Observe(took.Seconds())
	conntrackDeleted.WithLabelValues(family.String()).Add(float64(deleted))
}
