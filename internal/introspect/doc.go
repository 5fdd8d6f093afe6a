// Package introspect serves kube-proxy v1.37's metrics port, 10249, by [Handler]: metrics for
// Prometheus, and configuration, flags and status for people with curl.
package introspect
