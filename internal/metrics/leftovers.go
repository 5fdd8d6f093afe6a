package metrics

import (
	"k8s.io/component-base/metrics"
)

var leftoverRules = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Subsystem: subsystem, Name: "other_modes_leftovers",
	Help: "What kube-proxy's modes iptables and ipvs left on the node: chains of iptables-nft and iptables-legacy, and the device of ipvs", StabilityLevel: metrics.ALPHA,
}, []string{"kind"})

// SetLeftovers records how much another mode of kube-proxy left behind of a kind (leftovers.Kind).
func SetLeftovers(kind string, count int) { leftoverRules.WithLabelValues(kind).Set(float64(count)) }
