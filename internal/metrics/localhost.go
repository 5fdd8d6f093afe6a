package metrics

import "github.com/nftproxy/nftproxy/model"

var (
	localhostListeners      = newGaugeVec("nftables_localhost_nodeport_listeners", "Sockets that serve node ports on loopback addresses", ipFamily)
	localhostListenFailures = newCounterVec("nftables_localhost_nodeport_listener_creation_failures_total", "Failures to listen for a node port on a loopback address", ipFamily)
)

// SetLocalhostListeners records how many sockets serve node ports on loopback addresses of a family.
func SetLocalhostListeners(family model.Family, count int) {
	localhostListeners.WithLabelValues(family.String()).Set(float64(count))
}

// CountLocalhostListenFailure counts that such a socket could not be opened.
func CountLocalhostListenFailure(family model.Family) {
	localhostListenFailures.WithLabelValues(family.String()).Inc()
}
