package config

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/component-base/featuregate"

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

// CheckSource refuses what has no effect on a proxy whose Services come from a node-local server, because that alone talks to
// the API server: a clientConnection other than the default, and such values of client-go's feature gates. Errors name the
// flag of node-local-server that does the same. c has its defaults filled in.
func CheckSource(c *v1alpha2.KubeProxyConfiguration, names Names) error {
	if c.NodeLocal == nil || c.NodeLocal.Source == "" {
		return nil
	}
	var errs []error
	check := func(refused bool, field, flag string) {
		if refused {
			errs = append(errs, fmt.Errorf("%s: concerns the API server, which a proxy with %s does not ask; remove it, and give node-local-server %s", field, names.of("nodeLocal.source"), flag))
		}
	}
	var defaults v1alpha2.KubeProxyConfiguration
	v1alpha2.SetDefaults(&defaults)
	set, unset := c.ClientConnection, defaults.ClientConnection
	check(set.Kubeconfig != unset.Kubeconfig, names.of("clientConnection.kubeconfig"), "--kubeconfig")
	check(set.ContentType != unset.ContentType, names.of("clientConnection.contentType"), "--kube-api-content-type")
	check(set.AcceptContentTypes != unset.AcceptContentTypes, names.of("clientConnection.acceptContentTypes"), "--kube-api-content-type")
	check(set.QPS != unset.QPS, names.of("clientConnection.qps"), "--kube-api-qps")
	check(set.Burst != unset.Burst, names.of("clientConnection.burst"), "--kube-api-burst")
	for _, gate := range slices.Sorted(maps.Keys(c.FeatureGates)) {
		on := c.FeatureGates[gate]
		check(isClientGate(gate) && on != newFeatureGate().Enabled(featuregate.Feature(gate)),
			names.of("featureGates")+": "+gate, fmt.Sprintf("--feature-gates=%s=%t", gate, on))
	}
	if len(errs) == 0 {
		return nil
	}
	return joinLine(errs)
}

// CheckMode returns an error for a mode that this proxy does not have.
func CheckMode(mode v1alpha2.Mode, names Names) error {
	if mode == v1alpha2.ModeNFTables {
		return nil
	}
	return fmt.Errorf("%s: this kube-proxy does not have the mode %q; set it to %q, or run Kubernetes' own kube-proxy", names.of("mode"), mode, v1alpha2.ModeNFTables)
}
