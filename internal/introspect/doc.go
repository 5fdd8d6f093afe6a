// Package introspect answers those who ask what this proxy does: Prometheus, and people with
// curl. Handler is what kube-proxy v1.37 serves on its metrics port, 10249.
package introspect
