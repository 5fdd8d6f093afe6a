package config

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // the format that kube-proxy has beside text
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
)

// validateLogging adds to the errors of component-base what to do about them.
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

// dropGatedLogging turns off splitStream where its feature gate does not allow it. kube-proxy
// never notices that option in a file (its own flags' defaults overwrite it), so
// that it must not be an error here.
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
