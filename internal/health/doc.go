// Package health serves HTTP health checks of a Service proxy. Probes and load balancers ask a [Proxy]
// whether traffic should come to this node (/healthz and /livez). Load balancers also ask whether the node
// has endpoints of one Service; [Services] answers on each healthCheckNodePort. Paths, status codes,
// headers and bodies are those of kube-proxy v1.37, with two exceptions: /healthz is 503 until the
// first sync has succeeded, and the answer may have a list of problems.
package health
