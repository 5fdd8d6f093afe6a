package metrics

var (
	watchFailing = newGaugeVec("watch_failing", "1 while a resource cannot be listed or watched at the API server, a node-local server is away, or manifests cannot be read", "resource")
	emptyHeld    = newGaugeVec("empty_state_held", "1 while a list or full state without services or endpointslices, or a missing directory of manifests, is not believed, and the last state stays", "resource")
	nodeMissing  = newGaugeVec("node_missing", "1 while the proxy runs without the Node itself (node), its addresses or its pod CIDRs", "what")
)

// SetWatchFailing records whether a resource cannot be listed or watched (apiserver.Config.OnFailing).
func SetWatchFailing(resource string, failing bool) {
	watchFailing.WithLabelValues(resource).Set(oneIf(failing))
}

// SetEmptyHeld records whether a state without a resource is held (model.EmptyGuard.OnHeld).
func SetEmptyHeld(resource string, held bool) {
	emptyHeld.WithLabelValues(resource).Set(oneIf(held))
}

func startEmptyHeldAtZero() {
	SetEmptyHeld("services", false)
	SetEmptyHeld("endpointslices", false)
}

// SetNodeMissing records what the Node lacks (node.Options.OnMissing).
func SetNodeMissing(node, addresses, podCIDRs bool) {
	nodeMissing.WithLabelValues("node").Set(oneIf(node))
	nodeMissing.WithLabelValues("addresses").Set(oneIf(addresses))
	nodeMissing.WithLabelValues("pod_cidrs").Set(oneIf(podCIDRs))
}
