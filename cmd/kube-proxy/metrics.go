package main

import (
	"time"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/tracker"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The metrics have kube-proxy's names, so that its dashboards and alerts go on working.
// Those that only this proxy has share the prefix.
var (
	syncDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "kubeproxy", Name: "sync_proxy_rules_duration_seconds",
		Help:           "Seconds a sync took, from the changes to the kernel's answer",
		Buckets:        metrics.ExponentialBuckets(0.001, 2, 15),
		StabilityLevel: metrics.ALPHA,
	})
	syncTimestamp = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: "kubeproxy", Name: "sync_proxy_rules_last_timestamp_seconds",
		Help: "Time of the last sync that succeeded", StabilityLevel: metrics.ALPHA,
	})
	queuedTimestamp = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: "kubeproxy", Name: "sync_proxy_rules_last_queued_timestamp_seconds",
		Help: "Time when a sync was last asked for", StabilityLevel: metrics.ALPHA,
	})
	syncFailures = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "kubeproxy", Name: "sync_proxy_rules_nftables_sync_failures_total",
		Help: "Syncs that the kernel refused", StabilityLevel: metrics.ALPHA,
	})
	programmingDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "kubeproxy", Name: "network_programming_duration_seconds",
		Help: "Seconds from the change of a pod or Service to the rules in the kernel",
		Buckets: metrics.MergeBuckets(
			metrics.LinearBuckets(0.25, 0.25, 2), metrics.LinearBuckets(1, 1, 59),
			metrics.LinearBuckets(60, 5, 12), metrics.LinearBuckets(120, 30, 7)),
		StabilityLevel: metrics.ALPHA,
	})
	commitDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: "kubeproxy", Name: "nftables_commit_duration_seconds",
		Help:           "Seconds the kernel took to carry out a transaction",
		Buckets:        metrics.ExponentialBuckets(0.0001, 2, 18),
		StabilityLevel: metrics.ALPHA,
	})
	commitBytes = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "kubeproxy", Name: "nftables_commit_bytes_total",
		Help: "Bytes of the transactions that the kernel carried out", StabilityLevel: metrics.ALPHA,
	})
	repairsTotal = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "kubeproxy", Name: "nftables_foreign_changes_repaired_total",
		Help: "Times that somebody else's changes to the proxy's tables were found and undone", StabilityLevel: metrics.ALPHA,
	})
	skippedTotal = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "kubeproxy", Name: "skipped_objects_total",
		Help: "Objects, or parts of them, that were left out because they are invalid", StabilityLevel: metrics.ALPHA,
	}, []string{"kind", "reason"})
)

func init() {
	legacyregistry.MustRegister(syncDuration, syncTimestamp, queuedTimestamp, syncFailures, programmingDuration, commitDuration, commitBytes, repairsTotal, skippedTotal)
}

func recordQueued() { queuedTimestamp.SetToCurrentTime() }

func recordRepair() { repairsTotal.Inc() }

func recordSkip(kind, reason string) { skippedTotal.WithLabelValues(kind, reason).Inc() }

func recordCommit(s nft.Stats) {
	commitDuration.Observe(s.Kernel.Seconds())
	commitBytes.Add(float64(s.Bytes))
}

func observeSync(r tracker.SyncResult) {
	syncDuration.Observe(r.Duration.Seconds())
	if r.Err != nil {
		syncFailures.Inc()
		return
	}
	syncTimestamp.SetToCurrentTime()
	for _, trigger := range r.Triggers {
		programmingDuration.Observe(time.Since(trigger).Seconds())
	}
}
