package model

import (
	"context"
	"maps"
)

// Backend reconciles a dataplane with the model. This module has a Backend for nftables; others may write eBPF maps,
// IPVS, or a load balancer's configuration.
type Backend interface {
	// Sync applies changes. The first call is Full. After an error, perhaps half way, the caller calls
	// again with the same changes, merged with later ones. Calls never overlap.
	Sync(ctx context.Context, changes *Changes) error
}

// FullState returns a backend that calls sync with the full state each time, for dataplanes that take their
// whole configuration at once. The Changes are Full. They belong to the backend and are valid until sync
// returns. After an error sync is called again.
func FullState(sync func(ctx context.Context, all *Changes) error) Backend {
	return &fullState{sync: sync}
}

type fullState struct {
	sync func(context.Context, *Changes) error
	all  Changes
}

// Sync implements Backend.
func (f *fullState) Sync(ctx context.Context, changes *Changes) error {
	// Copied, because the caller merges into its map after an error.
	own := *changes
	if changes.Full {
		own.Ports = maps.Clone(changes.Ports)
	}
	f.all.Merge(&own)
	return f.sync(ctx, &f.all)
}
