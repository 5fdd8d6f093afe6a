// Package node is about the Node object of the node that the proxy runs on: doing without
// what it lacks, ending the process when it changes in a way that a running proxy does not follow, and
// posting events on it. The tracker reads the rest (zone, addresses, pod CIDRs).
package node
