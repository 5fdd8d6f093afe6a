package metrics

import "k8s.io/component-base/metrics"

var (
	watchFailing = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "watch_failing",
		Help: "1 while the API server does not let a resource be listed or watched", StabilityLevel: metrics.ALPHA,
	}, []string{"resource"})
	nodeMissing = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "node_missing",
		Help: "1 while the proxy runs without the Node itself (node), its addresses or its pod CIDRs", StabilityLevel: metrics.ALPHA,
	}, []string{"what"})
)

// SetWatchFailing records whether a resource cannot be listed or watched (apiserver.Config.OnFailing).
func SetWatchFailing(resource string, failing bool) {
	watchFailing.WithLabelValues(resource).Set(oneIf(failing))
}

// SetNodeMissing records what the Node lacks (node.Options.OnMissing).
func SetNodeMissing(node, addresses, podCIDRs bool) {
	nodeMissing.WithLabelValues("node").Set(oneIf(node))
	nodeMissing.WithLabelValues("addresses").Set(oneIf(addresses))
	nodeMissing.WithLabelValues("pod_cidrs").Set(oneIf(podCIDRs))
}

func oneIf(condition bool) float64 {
	if condition {
		return 1
	}
	return 0
}
