package tracker

import (
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/syncloop"
)

// Loop carries what changed in a Tracker to a Backend.
type Loop = syncloop.Loop

// LoopOptions configures a Loop. The zero value syncs as soon as something changes.
type LoopOptions = syncloop.Options

// SyncResult is the result of one call of Backend.Sync.
type SyncResult = syncloop.Result

var _ syncloop.Feed = (*Tracker)(nil)

// NewLoop returns a Loop that its method Run starts. It must be the only reader of tracker's Changes.
func NewLoop(tracker *Tracker, backend model.Backend, options LoopOptions) *Loop {
	return syncloop.New(tracker, backend, options)
}
