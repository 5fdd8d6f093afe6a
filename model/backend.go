package model

import "context"

// Backend reconciles a dataplane with the model. This module's own one writes nftables;
// others may write eBPF maps, IPVS, or a load balancer's configuration.
type Backend interface {
	// Sync applies changes. The first call is Full. After an error the caller calls again with
	// the same changes, merged with later ones. So a Sync that failed half way must be able to
	// start over. Calls never overlap.
	Sync(ctx context.Context, changes *Changes) error
}
