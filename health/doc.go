// Package health answers those who ask whether traffic should come here: probes of the proxy
// itself (/healthz and /livez), and load balancers that ask whether this node has endpoints
// of a Service (healthCheckNodePort). Paths, status codes, headers and bodies are those of
// kube-proxy v1.37.
package health
