package config

import (
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/component-base/featuregate"
)

// UseInClients has all clients of this process ask gates for client-go's features (WatchListClient
// and others), as kube-proxy's do. By default they ask environment variables. It must be called
// before the first client is made.
func UseInClients(gates featuregate.FeatureGate) {
	clientfeatures.ReplaceFeatureGates(clientGates{gates})
}

// clientGates makes client-go's Gates of component-base's.
type clientGates struct{ featuregate.FeatureGate }

// Enabled implements clientfeatures.Gates.
func (g clientGates) Enabled(name clientfeatures.Feature) bool {
	return g.FeatureGate.Enabled(featuregate.Feature(name))
}

// addClientGates adds all features of client-go to gates.
func addClientGates(gates featuregate.MutableVersionedFeatureGate) error {
	return clientfeatures.AddFeaturesToExistingFeatureGates(clientRegistry{gates})
}

// isClientGate reports whether client-go has a gate of that name. AllAlpha and AllBeta, which every set of gates has, are not
// client-go's.
func isClientGate(name string) bool {
	gates := featuregate.NewFeatureGate()
	_, general := gates.GetAll()[featuregate.Feature(name)]
	if err := addClientGates(gates); err != nil {
		panic(err) // client-go defines a gate twice
	}
	_, known := gates.GetAll()[featuregate.Feature(name)]
	return known && !general
}

// clientRegistry takes client-go's features into component-base's gates.
type clientRegistry struct {
	gates featuregate.MutableVersionedFeatureGate
}

// Add implements clientfeatures.Registry.
func (r clientRegistry) Add(features map[clientfeatures.Feature]clientfeatures.FeatureSpec) error {
	converted := make(map[featuregate.Feature]featuregate.FeatureSpec, len(features))
	for name, spec := range features {
		to := featuregate.FeatureSpec{Default: spec.Default, LockToDefault: spec.LockToDefault}
		switch spec.PreRelease {
		case clientfeatures.Alpha:
			to.PreRelease = featuregate.Alpha
		case clientfeatures.Beta:
			to.PreRelease = featuregate.Beta
		case clientfeatures.GA:
			to.PreRelease = featuregate.GA
		case clientfeatures.Deprecated:
			to.PreRelease = featuregate.Deprecated
		}
		converted[featuregate.Feature(name)] = to
	}
	return r.gates.Add(converted)
}
