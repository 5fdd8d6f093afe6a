package config

import (
	_ "embed"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	metricsfeatures "k8s.io/component-base/metrics/features"
	zpagesfeatures "k8s.io/component-base/zpages/features"
)

// LocalhostNodePorts is the gate that kube-proxy has (off by default) before it serves node
// ports on loopback addresses that nodePortAddresses names. Here it is on by default.
const LocalhostNodePorts featuregate.Feature = "KubeProxyNFTablesLocalhostNodePorts"

// kubeProxyGates are the names of the feature gates that kube-proxy v1.37.1 accepts, one a line.
// It accepts those of all Kubernetes components.
//
//go:embed featuregates.txt
var kubeProxyGates string

// FeatureGates returns the gates that have an effect here, as set or by default: those of
// logging, metrics, the z-pages and LocalhostNodePorts. The names of others that kube-proxy
// knows are returned as ineffective, and one that it does not know either is an error.
func FeatureGates(set map[string]bool) (gates featuregate.MutableVersionedFeatureGate, ineffective []string, errs field.ErrorList) {
	own := newFeatureGate()
	path := field.NewPath("featureGates")
	known := strings.Fields(kubeProxyGates)
	for _, name := range slices.Sorted(maps.Keys(set)) {
		_, effective := own.GetAll()[featuregate.Feature(name)]
		switch {
		case effective:
			if err := own.SetFromMap(map[string]bool{name: set[name]}); err != nil {
				errs = append(errs, field.Invalid(path, name, err.Error()))
			}
		case slices.Contains(known, name):
			ineffective = append(ineffective, name)
		default:
			errs = append(errs, field.Invalid(path, name, "must be the name of a feature gate of Kubernetes v1.37; remove it"))
		}
	}
	return own, ineffective, errs
}

func newFeatureGate() featuregate.MutableVersionedFeatureGate {
	gates := featuregate.NewFeatureGate()
	for _, add := range []func(featuregate.MutableVersionedFeatureGate) error{
		logsapi.AddFeatureGates, metricsfeatures.AddFeatureGates, zpagesfeatures.AddFeatureGates, addOwn,
	} {
		if err := add(gates); err != nil {
			panic(err) // two packages define one gate
		}
	}
	return gates
}

func addOwn(gates featuregate.MutableVersionedFeatureGate) error {
	return gates.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		LocalhostNodePorts: {Default: true, PreRelease: featuregate.Beta},
	})
}
