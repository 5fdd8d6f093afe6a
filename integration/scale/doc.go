// Package scale measures what the proxies of many nodes cost an API server, and the same through one
// server of the node-local API. Its benchmarks run the API server of package apiservertest in this
// process, which they measure, and the proxies in processes of their own.
package scale
