package metrics

import "strconv"

var (
	healthz            = newCounterVec("proxy_healthz_total", "Answers of /healthz by HTTP status code", "code")
	livez              = newCounterVec("proxy_livez_total", "Answers of /livez by HTTP status code", "code")
	serviceHealthPorts = newGaugeVec("service_health_ports", "Services' healthCheckNodePorts, one for each IP family, by state: listening, or failing to listen", "state")
)

// CountHealthz counts an answer of /healthz (health.Options.OnHealthz).
func CountHealthz(code int) { healthz.WithLabelValues(strconv.Itoa(code)).Inc() }

// CountLivez counts an answer of /livez (health.Options.OnLivez).
func CountLivez(code int) { livez.WithLabelValues(strconv.Itoa(code)).Inc() }

// SetServiceHealthPorts records how many healthCheckNodePorts are listened on, and how many
// cannot be (health.ServicesOptions.OnListening).
func SetServiceHealthPorts(listening, failing int) {
	serviceHealthPorts.WithLabelValues("listening").Set(float64(listening))
	serviceHealthPorts.WithLabelValues("failing").Set(float64(failing))
}
