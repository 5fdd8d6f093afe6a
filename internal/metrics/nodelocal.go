package metrics

import (
	"strconv"
	"time"

	"k8s.io/component-base/metrics"
)

var (
	nodeLocalWatchers = newGauge("node_local_watchers", "Streams of the node-local API that this process serves")
	nodeLocalBatches  = newCounterVec("node_local_batches_total", "Batches sent to clients of the node-local API, by whether they were the full state", "full")
	nodeLocalBytes    = newCounter("node_local_sent_bytes_total", "Bytes of batches sent to clients of the node-local API")
	nodeLocalLag      = newHistogram("node_local_lag_seconds", "Time from the first change in a batch until the batch was sent", metrics.ExponentialBuckets(0.001, 2, 16))
	nodeLocalRefused  = newCounterVec("node_local_refused_total", "Connections and calls of the node-local API that were refused or ended: the TLS handshake failed, the node is invalid or not served, the certificate is for another node (permission), the keys of labels or annotations are invalid, there are too many streams, others take the memory for full states (busy), the client stalled", "reason")
)

func startNodeLocalAtZero() {
	for _, reason := range []string{"node", "permission", "keys", "streams", "busy", "stalled"} {
		nodeLocalRefused.WithLabelValues(reason)
	}
}

// SetNodeLocalWatchers records how many streams there are (server.Hooks.OnWatchers).
func SetNodeLocalWatchers(n int) { nodeLocalWatchers.Set(float64(n)) }

// ObserveNodeLocalBatch records a batch that was sent (server.Hooks.OnBatch).
func ObserveNodeLocalBatch(full bool, bytes int, lag time.Duration) {
	nodeLocalBatches.WithLabelValues(strconv.FormatBool(full)).Inc()
	nodeLocalBytes.Add(float64(bytes))
	if lag > 0 {
		nodeLocalLag.Observe(lag.Seconds())
	}
}

// CountNodeLocalRefused counts a call that was refused (server.Hooks.OnRefused).
func CountNodeLocalRefused(reason string) { nodeLocalRefused.WithLabelValues(reason).Inc() }
