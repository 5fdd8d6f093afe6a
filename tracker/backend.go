package tracker

import (
	"context"

	"github.com/nftproxy/nftproxy/model"
)

// Backend brings a dataplane in line with the model. This module's own writes nftables;
// others may write eBPF maps, IPVS, or a load balancer's configuration.
type Backend interface {
	// Sync applies changes. The first call is Full. After an error the loop calls again
	// with the same changes and whatever came since merged in, so a Sync that failed half
	// way must be able to start over. Calls never overlap.
	Sync(ctx context.Context, changes *model.Changes) error
}
