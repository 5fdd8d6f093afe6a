// Package server serves the node-local API: each backend that connects receives the state of its
// node's Services, and then the changes. The state comes from a [tracker.Tracker]. With EveryNode
// in its Options, one server serves all nodes of a cluster.
//
// A stream has no queue of batches. When gRPC has written a batch, the server computes the difference
// to now, so a slow client costs little more memory than a fast one: what gRPC writes ahead, 64 KiB.
// Large batches of all clients share [Options.BatchMemory]. A client that takes nothing for
// [Options.SendTimeout] loses its connection.
package server
