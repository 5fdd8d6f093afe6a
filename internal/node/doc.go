// Package node follows the Node object of the node that the proxy runs on. It replaces what the
// Node lacks at the start, ends the process when the Node changes in a way that a running proxy
// does not follow, and posts events on the Node. The tracker reads the rest: zone, addresses, pod
// CIDRs.
package node
