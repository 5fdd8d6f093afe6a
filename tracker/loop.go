package tracker

import (
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/syncloop"
)

// Loop carries the changes of a Tracker to a Backend.
type Loop = syncloop.Loop

// LoopOptions configures a Loop. The zero value syncs as soon as something changes.
type LoopOptions = syncloop.Options

// SyncResult is the result of one call of Backend.Sync.
type SyncResult = syncloop.Result

// EmptyGuard keeps a Source from believing that there are no Services at all.
type EmptyGuard = syncloop.EmptyGuard

// EmptyState is the decision of an EmptyGuard about one resource.
type EmptyState = syncloop.EmptyState

var _ syncloop.Feed = (*Tracker)(nil)

// NewLoop returns a Loop that its method Run starts. It must be the only reader of tracker's Changes.
// It panics on a Tracker without a node of its own: see Options.EveryNode. For a View, call
// syncloop.New.
func NewLoop(tracker *Tracker, backend model.Backend, options LoopOptions) *Loop {
	tracker.ownView("NewLoop")
	return syncloop.New(tracker, backend, options)
}
