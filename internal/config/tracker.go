package config

import (
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/tracker"
)

// Tracker returns the part of a valid configuration that decides what of Services counts. The
// caller adds the name of the node, and who is told.
func Tracker(c *v1alpha2.KubeProxyConfiguration) tracker.Options {
	gates, _, _ := FeatureGates(c.FeatureGates)
	return tracker.Options{IgnoreExternalIPs: !gates.Enabled(AllowServiceExternalIPs)}
}
