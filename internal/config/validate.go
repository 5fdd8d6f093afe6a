package config

import (
	"fmt"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
)

// Validate checks a configuration with defaults filled in. Its error, one line, names every
// field that is wrong, as names does, and what is right.
func Validate(c *v1alpha2.KubeProxyConfiguration, names Names) error {
	errs := v1alpha2.Validate(c)
	gates, _, gateErrs := FeatureGates(c.FeatureGates)
	errs = append(errs, gateErrs...)
	errs = append(errs, validateLogging(&c.Logging, gates)...)
	return fieldErrors(errs, names)
}

// Warnings returns what in a valid configuration is missing, has no effect, or leaves something open: one line each, which
// calls the field as names does.
func Warnings(c *v1alpha2.KubeProxyConfiguration, names Names) []string {
	warnings := missing(c, names)
	_, ineffective, _ := FeatureGates(c.FeatureGates)
	for _, gate := range ineffective {
		warnings = append(warnings, names.of("featureGates")+": "+gate)
	}
	return append(warnings, openNodePorts(c, names)...)
}

// ValidateNodeLocal checks the section nodeLocal alone, to which flags may have been added since a file was checked.
func ValidateNodeLocal(c *v1alpha2.KubeProxyConfiguration, names Names) error {
	return fieldErrors(v1alpha2.ValidateNodeLocal(c.NodeLocal), names)
}

// CheckMode returns an error for a mode that this proxy does not have.
func CheckMode(mode v1alpha2.Mode, names Names) error {
	if mode == v1alpha2.ModeNFTables {
		return nil
	}
	return fmt.Errorf("%s: this kube-proxy does not have the mode %q; set it to %q, or run Kubernetes' own kube-proxy", names.of("mode"), mode, v1alpha2.ModeNFTables)
}
