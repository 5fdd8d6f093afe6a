package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // the format that kube-proxy has beside text
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
)

// Validate checks a configuration with defaults filled in. Its error, one line, names
// every wrong field and the right values.
func Validate(c *v1alpha2.KubeProxyConfiguration, names Names) error {
	errs := v1alpha2.Validate(c)
	gates, _, gateErrs := FeatureGates(c.FeatureGates)
	errs = append(errs, gateErrs...)
	errs = append(errs, validateLogging(&c.Logging, gates)...)
	return fieldErrors(errs, names)
}

// Warnings returns a line for each setting that is missing, has no effect, or leaves node
// ports open to more than it says.
func Warnings(c *v1alpha2.KubeProxyConfiguration, names Names) []string {
	warnings := missing(c, names)
	_, ineffective, _ := FeatureGates(c.FeatureGates)
	for _, gate := range ineffective {
		warnings = append(warnings, names.nameOf("featureGates")+": "+gate)
	}
	return append(warnings, openNodePorts(c, names)...)
}

// ValidateNodeLocal checks the section nodeLocal alone, to which flags may have been added since a file was checked.
func ValidateNodeLocal(c *v1alpha2.KubeProxyConfiguration, names Names) error {
	return fieldErrors(v1alpha2.ValidateNodeLocal(c.NodeLocal), names)
}

// CheckSource refuses settings for the API server on a proxy whose Services come from a node-local server, which alone
// talks to it. Errors name the flag of node-local-server that does the same. c has its defaults filled in.
func CheckSource(c *v1alpha2.KubeProxyConfiguration, names Names) error {
	if c.NodeLocal == nil || c.NodeLocal.Source == "" {
		return nil
	}
	var errs []error
	check := func(refused bool, name, flag string) {
		if refused {
			errs = append(errs, fmt.Errorf("%s: concerns the API server, which a proxy with %s does not ask; remove it, and give node-local-server %s", name, names.nameOf("nodeLocal.source"), flag))
		}
	}
	var defaults v1alpha2.KubeProxyConfiguration
	v1alpha2.SetDefaults(&defaults)
	set, unset := c.ClientConnection, defaults.ClientConnection
	check(set.Kubeconfig != unset.Kubeconfig, names.nameOf("clientConnection.kubeconfig"), "--kubeconfig")
	check(set.ContentType != unset.ContentType, names.nameOf("clientConnection.contentType"), "--kube-api-content-type")
	check(set.AcceptContentTypes != unset.AcceptContentTypes, names.nameOf("clientConnection.acceptContentTypes"),
		"--kube-api-content-type")
	check(set.QPS != unset.QPS, names.nameOf("clientConnection.qps"), "--kube-api-qps")
	check(set.Burst != unset.Burst, names.nameOf("clientConnection.burst"), "--kube-api-burst")
	for _, gate := range slices.Sorted(maps.Keys(c.FeatureGates)) {
		on := c.FeatureGates[gate]
		check(isClientGate(gate) && on != newFeatureGate().Enabled(featuregate.Feature(gate)),
			names.nameOf("featureGates")+": "+gate, fmt.Sprintf("--feature-gates=%s=%t", gate, on))
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
	return fmt.Errorf("%s: this kube-proxy does not have the mode %q; set it to %q, or run Kubernetes' own kube-proxy",
		names.nameOf("mode"), mode, v1alpha2.ModeNFTables)
}

// validateLogging adds remedies to the errors of component-base.
func validateLogging(c *logsapi.LoggingConfiguration, gates featuregate.FeatureGate) field.ErrorList {
	errs := logsapi.Validate(c, gates, field.NewPath("logging"))
	for _, err := range errs {
		switch {
		case err.Type == field.ErrorTypeForbidden:
			err.Detail += "; must be unset, or allowed by the feature gate"
		case strings.HasSuffix(err.Field, ".format"):
			err.Detail += `; must be "text" or "json"`
		}
	}
	return errs
}

// dropGatedLogging turns off splitStream where its feature gate does not allow it. It is no error, because in
// kube-proxy the defaults of flags overwrite that option of a file.
func (f *File) dropGatedLogging(c *kubeproxyv1alpha1.KubeProxyConfiguration) {
	gates, _, _ := FeatureGates(c.FeatureGates)
	if gates.Enabled(logsapi.LoggingAlphaOptions) {
		return
	}
	drop := func(name string, option *bool) {
		if *option {
			*option = false
			f.Warnings = append(f.Warnings, name+": has no effect without the feature gate LoggingAlphaOptions")
		}
	}
	drop("logging.options.text.splitStream", &c.Logging.Options.Text.SplitStream)
	drop("logging.options.json.splitStream", &c.Logging.Options.JSON.SplitStream)
}

// missing warns, as kube-proxy does, of a missing setting without which Services work less well than expected.
func missing(c *v1alpha2.KubeProxyConfiguration, names Names) []string {
	if c.DetectLocalMode != v1alpha2.LocalModeClusterCIDR || len(c.DetectLocal.ClusterCIDRs) > 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: not set, so pods cannot be told from clients outside the cluster: "+
		"no client of a ClusterIP is masqueraded, and externalTrafficPolicy Local applies to pods too; set the pods' range, or choose another %s",
		names.nameOf("detectLocal.clusterCIDRs"), names.nameOf("detectLocalMode"))}
}
