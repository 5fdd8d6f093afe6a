package nodelocal

import (
	"context"

	"github.com/nftproxy/nftproxy/model"
)

// FullState returns a backend that calls sync with the full state each time, for dataplanes that take their
// whole configuration at once. The Changes are Full. They belong to the backend and are valid until sync
// returns. After an error sync is called again.
func FullState(sync func(ctx context.Context, all *model.Changes) error) model.Backend {
	return &fullState{sync: sync}
}

type fullState struct {
	sync func(context.Context, *model.Changes) error
	all  model.Changes
}

// Sync implements model.Backend.
func (f *fullState) Sync(ctx context.Context, changes *model.Changes) error {
	// The caller's map is not ours to keep: it merges into it after an error.
	own := *changes
	if changes.Full {
		own.Ports = make(map[model.PortID]*model.ServicePort, len(changes.Ports))
		for id, port := range changes.Ports {
			own.Ports[id] = port
		}
	}
	f.all.Merge(&own)
	return f.sync(ctx, &f.all)
}
