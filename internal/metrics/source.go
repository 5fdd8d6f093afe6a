package metrics

import (
	"strconv"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/nftproxy/nftproxy/tracker"
)

var (
	serviceChanges = newDesc("sync_proxy_rules_service_changes_total",
		"Services that were reported as added, changed or deleted")
	serviceChangesPending = newDesc("sync_proxy_rules_service_changes_pending",
		"Changes of Services that no sync has taken up yet")
	endpointChanges = newDesc("sync_proxy_rules_endpoint_changes_total",
		"EndpointSlices that were reported as added, changed or deleted")
	endpointChangesPending = newDesc("sync_proxy_rules_endpoint_changes_pending",
		"Changes of EndpointSlices that no sync has taken up yet")
	unguardedServices = newDesc("unguarded_load_balancer_services",
		"Services with loadBalancerSourceRanges and load balancer IPs of an IP family that everybody may dial nevertheless")

	skippedObjects = newCounterVec("skipped_objects_total",
		"Objects, or parts of them, that were skipped because they are invalid", "kind", "reason")
)

// CountSkip counts an invalid object, or an invalid part of one (tracker.Options.OnSkip).
func CountSkip(kind, reason string) { skippedObjects.WithLabelValues(kind, reason).Inc() }

// ShowTracker makes the metrics of changes show the counts of t, instead of a tracker shown before.
func ShowTracker(t *tracker.Tracker) { trackerCollector.source.Store(t) }

var trackerCollector = &collector[tracker.Tracker]{
	descs: []*metrics.Desc{serviceChanges, serviceChangesPending, endpointChanges, endpointChangesPending, unguardedServices},
	collect: func(t *tracker.Tracker, ch chan<- metrics.Metric) {
		counts := t.Counts()
		ch <- metrics.NewLazyConstMetric(serviceChanges, metrics.CounterValue, float64(counts.Services))
		ch <- metrics.NewLazyConstMetric(serviceChangesPending, metrics.GaugeValue, float64(counts.PendingServices))
		ch <- metrics.NewLazyConstMetric(endpointChanges, metrics.CounterValue, float64(counts.EndpointSlices))
		ch <- metrics.NewLazyConstMetric(endpointChangesPending, metrics.GaugeValue, float64(counts.PendingEndpointSlices))
		ch <- metrics.NewLazyConstMetric(unguardedServices, metrics.GaugeValue, float64(counts.UnguardedServices))
	},
}

var (
	watchFailing = newGaugeVec("watch_failing", "1 while a resource cannot be listed or watched at the API server, a node-local server is away, or manifests cannot be read", "resource")
	lossesHeld   = newGaugeVec("losses_held", "1 while services, endpointslices or nodes stay in force that the last list lacks, and while a first list without any is not believed", "resource")
	nodeMissing  = newGaugeVec("node_missing",
		"1 while the proxy runs without the Node itself (node), its addresses or its pod CIDRs", "what")
)

// SetWatchFailing records whether listing or watching a resource fails (apiserver.Config.OnFailing).
func SetWatchFailing(resource string, failing bool) {
	watchFailing.WithLabelValues(resource).Set(oneIf(failing))
}

// SetLossesHeld records whether objects of a resource are held (model.ListGuard.OnHeld).
func SetLossesHeld(resource string, held bool) {
	lossesHeld.WithLabelValues(resource).Set(oneIf(held))
}

// SetNodeMissing records the missing facts of the Node (node.Options.OnMissing).
func SetNodeMissing(node, addresses, podCIDRs bool) {
	nodeMissing.WithLabelValues("node").Set(oneIf(node))
	nodeMissing.WithLabelValues("addresses").Set(oneIf(addresses))
	nodeMissing.WithLabelValues("pod_cidrs").Set(oneIf(podCIDRs))
}

var (
	nodeLocalWatchers = newGauge("node_local_watchers", "Calls to the node-local server of this process that are under way, those of health checks included")
	nodeLocalBatches  = newCounterVec("node_local_batches_total",
		"Batches sent to clients of the node-local API, by whether they were the full state", "full")
	nodeLocalBytes = newCounter("node_local_sent_bytes_total", "Bytes of batches sent to clients of the node-local API")
	nodeLocalLag   = newHistogram("node_local_lag_seconds",
		"Time from the first change in a batch until the batch was sent", metrics.ExponentialBuckets(0.001, 2, 16))
	nodeLocalRefused = newCounterVec("node_local_refused_total", "Connections and calls of the node-local API that were refused or ended: there are too many connections, one made no call in time (silent), the TLS handshake failed, the node is invalid or not served, the certificate is for another node or for none (permission), the keys of labels or annotations are invalid, there are too many streams, others take the memory for full states (busy), the client stalled", "reason")
)

// SetNodeLocalWatchers records the number of streams (server.Hooks.OnWatchers).
func SetNodeLocalWatchers(n int) { nodeLocalWatchers.Set(float64(n)) }

// ObserveNodeLocalBatch records a batch sent to a client (server.Hooks.OnBatch). A lag of 0 skips the lag metric.
func ObserveNodeLocalBatch(full bool, bytes int, lag time.Duration) {
	nodeLocalBatches.WithLabelValues(strconv.FormatBool(full)).Inc()
	nodeLocalBytes.Add(float64(bytes))
	if lag > 0 {
		nodeLocalLag.Observe(lag.Seconds())
	}
}

// CountNodeLocalRefused counts a refused call (server.Hooks.OnRefused).
func CountNodeLocalRefused(reason string) { nodeLocalRefused.WithLabelValues(reason).Inc() }
