package metrics

var (
	watchFailing = newGaugeVec("watch_failing", "1 while the API server does not let a resource be listed or watched", "resource")
	nodeMissing  = newGaugeVec("node_missing", "1 while the proxy runs without the Node itself (node), its addresses or its pod CIDRs", "what")
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
