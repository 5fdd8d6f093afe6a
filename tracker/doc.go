// Package tracker turns Kubernetes objects into the work of one node for each Service port.
//
// A [Source] feeds Services, EndpointSlices, the Node and ServiceCIDRs into a [Tracker]. The Tracker applies
// Kubernetes' rules, which select Services and endpoints for this node. It publishes [model.Changes], and a
// [model.Loop] passes them to a [model.Backend]. With [Options.EveryNode] one Tracker serves any number of nodes, each
// through a [View].
//
// The work for an event depends on the Services that it touches, not on the size of the cluster. A new zone label on a
// node is the exception: it recomputes every Service for this node.
//
//	t := tracker.New(tracker.Options{NodeName: "node-1"})
//	go source.Run(ctx, t)
//	err := model.NewLoop(t, backend, model.LoopOptions{}).Run(ctx)
package tracker
