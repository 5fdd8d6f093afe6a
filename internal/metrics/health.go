package metrics

import (
	"strconv"

	"github.com/nftproxy/nftproxy/model"
)

var (
	healthz            = newCounterVec("proxy_healthz_total", "Answers of /healthz by HTTP status code", "code")
	livez              = newCounterVec("proxy_livez_total", "Answers of /livez by HTTP status code", "code")
	serviceHealthPorts = newGaugeVec("service_health_ports",
		"Services' healthCheckNodePorts, one for each IP family, by state: listening, or failing to listen", "state")
)

// CountHealthz counts an answer of /healthz (health.Options.OnHealthz).
func CountHealthz(code int) { healthz.WithLabelValues(strconv.Itoa(code)).Inc() }

// CountLivez counts an answer of /livez (health.Options.OnLivez).
func CountLivez(code int) { livez.WithLabelValues(strconv.Itoa(code)).Inc() }

// SetServiceHealthPorts records the numbers of healthCheckNodePorts by state (health.ServicesOptions.OnListening).
func SetServiceHealthPorts(listening, failing int) {
	serviceHealthPorts.WithLabelValues("listening").Set(float64(listening))
	serviceHealthPorts.WithLabelValues("failing").Set(float64(failing))
}

var (
	localhostListeners = newGaugeVec("nftables_localhost_nodeport_listeners",
		"Sockets that serve node ports on loopback addresses", ipFamily)
	localhostListenFailures = newCounterVec("nftables_localhost_nodeport_listener_creation_failures_total",
		"Failures to listen for a node port on a loopback address", ipFamily)
)

// SetLocalhostListeners records the number of sockets that serve node ports on loopback addresses of a family.
func SetLocalhostListeners(family model.Family, count int) {
	localhostListeners.WithLabelValues(family.String()).Set(float64(count))
}

// CountLocalhostListenFailure counts a failure to open such a socket.
func CountLocalhostListenFailure(family model.Family) {
	localhostListenFailures.WithLabelValues(family.String()).Inc()
}
