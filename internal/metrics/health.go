package metrics

import (
	"strconv"

	"k8s.io/component-base/metrics"
)

var (
	healthz = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "proxy_healthz_total",
		Help: "Answers of /healthz by HTTP status code", StabilityLevel: metrics.ALPHA,
	}, []string{"code"})
	livez = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "proxy_livez_total",
		Help: "Answers of /livez by HTTP status code", StabilityLevel: metrics.ALPHA,
	}, []string{"code"})
	serviceHealthPorts = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "service_health_ports",
		Help: "Services' healthCheckNodePorts, one for each IP family, by state: listening, or failing to listen", StabilityLevel: metrics.ALPHA,
	}, []string{"state"})
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
