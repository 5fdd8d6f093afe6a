// Package server serves the node-local API: it tells any number of backends what their nodes have to do for
// Services. What is served comes from a tracker.Tracker; with Options.EveryNode set there, one server does for all nodes of a cluster.
//
// A stream has no queue. When a client has taken a batch it gets the difference to now, so a slow client costs what a fast one does. One that
// takes nothing for Options.SendTimeout loses its connection.
package server
