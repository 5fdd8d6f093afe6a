// Package metrics holds the metrics of the proxy. Those that kube-proxy v1.37 has in its nftables mode
// have its names, labels, types, buckets and stability levels, so that dashboards and
// alerts go on working; those that only this proxy has share the prefix kubeproxy_.
//
// kube-proxy syncs each IP family by itself and labels what it measures with ip_family. This
// proxy syncs both in one transaction. What is measured of it is recorded for both
// families alike, so that queries that pick a family, or go by family, find what they look for.
package metrics

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // rest_client_* and the like
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info

	"github.com/nftproxy/nftproxy/model"
)

// ipFamily is the label with the IP family.
const ipFamily = "ip_family"

var register sync.Once

// Register adds the metrics to the registry that /metrics shows
// (k8s.io/component-base/metrics/legacyregistry). What is recorded before is lost. Feature gates
// of metrics (NativeHistograms) must have been applied before. Further calls do nothing.
func Register() {
	register.Do(func() {
		legacyregistry.MustRegister(
			syncDuration, fullSyncDuration, partialSyncDuration, lastSync, lastQueued, programmingDuration, noLocalEndpoints,
			syncFailures, cleanupFailures,
			compileDuration, encodeDuration, commitDuration, commitBytes, commitElements, commitChains,
			foreignChanges, repairs, divergedTables,
			conntrackDuration, conntrackDeleted, conntrackFailures,
			healthz, livez, serviceHealthPorts,
			localhostListeners, localhostListenFailures,
			skippedObjects,
			watchFailing, emptyHeld, nodeMissing,
			leftoverRules, buildInfo,
			nodeLocalWatchers, nodeLocalBatches, nodeLocalBytes, nodeLocalLag, nodeLocalRefused,
		)
		legacyregistry.CustomMustRegister(trackerCollector, serviceCollector)
		startAtZero()
	})
}

// RegisterServer is Register for a process that serves the node-local API and programs nothing: it adds the metrics that
// such a process has. Of Register and RegisterServer the first call counts.
func RegisterServer() {
	register.Do(func() {
		legacyregistry.MustRegister(
			skippedObjects, watchFailing, emptyHeld, buildInfo,
			nodeLocalWatchers, nodeLocalBatches, nodeLocalBytes, nodeLocalLag, nodeLocalRefused,
		)
		legacyregistry.CustomMustRegister(trackerCollector)
		startNodeLocalAtZero()
		startEmptyHeldAtZero()
		showBuildInfo()
	})
}

// startAtZero makes counters appear before they first count: of one that appears as 1, an
// alert on its increase sees none.
func startAtZero() {
	for _, family := range model.Families {
		for _, counter := range []*metrics.CounterVec{syncFailures, cleanupFailures, conntrackDeleted, conntrackFailures, localhostListenFailures} {
			counter.WithLabelValues(family.String())
		}
	}
	startNodeLocalAtZero()
	startEmptyHeldAtZero()
	SetServiceHealthPorts(0, 0)
	showBuildInfo()
}

// observeBoth records a duration in seconds for both families.
func observeBoth(histogram *metrics.HistogramVec, seconds float64) {
	for _, family := range model.Families {
		histogram.WithLabelValues(family.String()).Observe(seconds)
	}
}
