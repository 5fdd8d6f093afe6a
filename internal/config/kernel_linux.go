package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/component-base/featuregate"
)

// ProbeKernel asks the kernel for what the rules of these IP families need, and for what the feature gates need that are
// on. An nft.MissingError names what is missing; the gate that needs it stands before it. Any other error ends the probes.
func ProbeKernel(ctx context.Context, conn *nft.Conn, families []nft.Family, gates featuregate.FeatureGate) error {
	err := conn.Probe(ctx, families)
	for _, gate := range slices.Sorted(maps.Keys(kernelFeatures)) {
		if err != nil && !errors.As(err, new(nft.MissingError)) {
			return err
		}
		if !gates.Enabled(gate) {
			continue
		}
		if missing := conn.Probe(ctx, families, kernelFeatures[gate]...); missing != nil {
			err = errors.Join(err, fmt.Errorf("featureGates: %s: %w", gate, missing))
		}
	}
	return err
}
