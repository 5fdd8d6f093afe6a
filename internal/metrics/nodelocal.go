package metrics

import (
	"time"

	"k8s.io/component-base/metrics"
)

var (
	nodeLocalWatchers = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "node_local_watchers",
		Help: "Streams of the node-local API that this process serves", StabilityLevel: metrics.ALPHA,
	})
	nodeLocalBatches = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "node_local_batches_total",
		Help: "Batches sent to clients of the node-local API, by whether they were the full state", StabilityLevel: metrics.ALPHA,
	}, []string{"full"})
	nodeLocalBytes = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "node_local_sent_bytes_total",
		Help: "Bytes of batches sent to clients of the node-local API", StabilityLevel: metrics.ALPHA,
	})
	nodeLocalLag = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "node_local_lag_seconds",
		Help: "Time from the first change in a batch until the batch was sent", Buckets: metrics.ExponentialBuckets(0.001, 2, 16), StabilityLevel: metrics.ALPHA,
	})
	nodeLocalRefused = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "node_local_refused_total",
		Help: "Calls of the node-local API that were refused or ended: the node is invalid or not served, there are too many streams, the client stalled", StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
)

func startNodeLocalAtZero() {
	for _, reason := range []string{"node", "streams", "stalled"} {
		nodeLocalRefused.WithLabelValues(reason)
	}
}

// SetNodeLocalWatchers records how many streams there are (server.Hooks.OnWatchers).
func SetNodeLocalWatchers(n int) { nodeLocalWatchers.Set(float64(n)) }

// ObserveNodeLocalBatch records a batch that was sent (server.Hooks.OnBatch).
func ObserveNodeLocalBatch(full bool, bytes int, lag time.Duration) {
	label := "false"
	if full {
		label = "true"
	}
	nodeLocalBatches.WithLabelValues(label).Inc()
	nodeLocalBytes.Add(float64(bytes))
	if lag > 0 {
		nodeLocalLag.Observe(lag.Seconds())
	}
}

// CountNodeLocalRefused counts a call that was refused (server.Hooks.OnRefused).
func CountNodeLocalRefused(reason string) { nodeLocalRefused.WithLabelValues(reason).Inc() }
