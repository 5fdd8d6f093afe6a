// Package tracker turns Kubernetes objects into what one node has to do for each
// Service port.
//
// A [Source] feeds Services, EndpointSlices, the Node and ServiceCIDRs into a [Tracker],
// which applies Kubernetes' rules (which Services count, which endpoints serve them on
// this node) and hands out what changed as [model.Changes]. A [Loop] carries those to a
// [model.Backend]. With [Options.EveryNode] one Tracker serves any number of nodes, each through a [View]. The package knows nothing of how a backend forwards packets, so it can be
// used by any node-local Service proxy.
//
// Cost follows what happened: an event costs work in proportion to the Services it
// touches, never to the size of the cluster. The one exception is a new zone label on
// the node, which decides anew for every Service.
package tracker
