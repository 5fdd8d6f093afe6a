// Package tracker turns Kubernetes objects into the work of one node for each Service port.
//
// A [Source] feeds Services, EndpointSlices, the Node and ServiceCIDRs into a [Tracker]. The
// Tracker applies Kubernetes' rules: which Services count, and which endpoints serve them on this
// node. It publishes changes as [model.Changes], and a [Loop] passes those to a [model.Backend].
// With [Options.EveryNode] one Tracker serves any number of nodes, each through a [View].
//
// The package does not know how a backend forwards packets, so any node-local Service proxy can use
// it.
//
// An event costs work in proportion to the Services that it touches, not to the size of the
// cluster. There is one exception: a new zone label on a node decides anew about every Service for
// that node.
package tracker
