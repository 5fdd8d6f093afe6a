package metrics

var leftoverRules = newGaugeVec("other_modes_leftovers", "Leftovers of kube-proxy's iptables and ipvs modes on the node: the number of chains of iptables-nft and of iptables-legacy, and 1 for the device of ipvs", "kind")

// SetLeftovers records how much another mode of kube-proxy left behind of a kind (leftovers.Kind).
func SetLeftovers(kind string, count int) { leftoverRules.WithLabelValues(kind).Set(float64(count)) }
