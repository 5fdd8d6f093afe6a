package metrics

import (
	"k8s.io/component-base/metrics"
)

var leftoverRules = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Subsystem: subsystem, Name: "other_modes_leftovers",
	Help: "Leftovers of kube-proxy's iptables and ipvs modes on the node: the number of chains of iptables-nft and of iptables-legacy, and 1 for the device of ipvs", StabilityLevel: metrics.ALPHA,
}, []string{"kind"})

// SetLeftovers records how much another mode of kube-proxy left behind of a kind (leftovers.Kind).
func SetLeftovers(kind string, count int) { leftoverRules.WithLabelValues(kind).Set(float64(count)) }
