package metrics

import (
	"k8s.io/component-base/metrics"

	"github.com/nftproxy/nftproxy/model"
)

var (
	localhostListeners = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "nftables_localhost_nodeport_listeners",
		Help: "Sockets that serve node ports on loopback addresses", StabilityLevel: metrics.ALPHA,
	}, []string{ipFamily})
	localhostListenFailures = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "nftables_localhost_nodeport_listener_creation_failures_total",
		Help: "Failures to listen for a node port on a loopback address", StabilityLevel: metrics.ALPHA,
	}, []string{ipFamily})
)

// SetLocalhostListeners records how many sockets serve node ports on loopback addresses of a family.
func SetLocalhostListeners(family model.Family, count int) {
	localhostListeners.WithLabelValues(family.String()).Set(float64(count))
}

// CountLocalhostListenFailure counts that such a socket could not be opened.
func CountLocalhostListenFailure(family model.Family) {
	localhostListenFailures.WithLabelValues(family.String()).Inc()
}
