package config

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	metricsfeatures "k8s.io/component-base/metrics/features"
	zpagesfeatures "k8s.io/component-base/zpages/features"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
)

const (
	// AffinityHash, DirectReturn, OwnTables, RefusedCounters and ServiceCounters are gates of this proxy, off by default. See
	// AffinityHash, DirectReturn, OwnTables, CountRefused and CountServices in compiler.Config. ServiceCounters includes
	// RefusedCounters.
	AffinityHash    featuregate.Feature = "NFTProxyAffinityHash"
	DirectReturn    featuregate.Feature = "NFTProxyDirectReturn"
	OwnTables       featuregate.Feature = "NFTProxyOwnTables"
	RefusedCounters featuregate.Feature = "NFTProxyRefusedCounters"
	ServiceCounters featuregate.Feature = "NFTProxyServiceCounters"
	// AllowServiceExternalIPs is on by default. Off, the externalIPs of Services do not count (CVE-2020-8554).
	AllowServiceExternalIPs featuregate.Feature = "AllowServiceExternalIPs"
	// LocalhostNodePorts serves node ports on loopback addresses that nodePortAddresses names. It is on by default here, and
	// alpha and off in kube-proxy.
	LocalhostNodePorts featuregate.Feature = "KubeProxyNFTablesLocalhostNodePorts"
)

// fixedGates are gates that change kube-proxy v1.37 and not this proxy, and why. Some are locked in v1.37.
var fixedGates = map[string]string{
	"CBORServingAndStorage":         "/statusz and /flagz are text",
	"KubeProxyIPVS":                 "there is no mode ipvs",
	"MultiCIDRServiceAllocator":     "ServiceCIDRs are always followed",
	"NFTablesNetlink":               "rules always go to the kernel over netlink, no nft program is run",
	"NFTablesProxyMode":             "nftables is the only mode",
	"PreferSameTrafficDistribution": "hints for nodes are always followed",
	"WinDSR":                        "this is not Windows",
	"WinOverlay":                    "this is not Windows",
}

// kubeProxyGates are the feature gates that kube-proxy v1.37.1 accepts, one a line: those of all Kubernetes components.
//
//go:embed featuregates.txt
var kubeProxyGates string

// removedGates are those that kube-proxy v1.34 to v1.36 accepted, so that the file of an older version is still valid.
//
//go:embed featuregates-removed.txt
var removedGates string

// FeatureGates returns the gates that have an effect here, as set or by default. Others that kube-proxy knows are
// ineffective, each with a text about it. One that kube-proxy does not know either is an error.
func FeatureGates(set map[string]bool) (gates featuregate.MutableVersionedFeatureGate, ineffective []string, errs field.ErrorList) {
	own := newFeatureGate()
	path := field.NewPath("featureGates")
	known := strings.Fields(kubeProxyGates + removedGates)
	for _, name := range slices.Sorted(maps.Keys(set)) {
		_, effective := own.GetAll()[featuregate.Feature(name)]
		switch {
		case effective:
			// Without a logger, since gates are set many times over, each time with a log line about deprecated ones.
			if err := own.SetFromMapWithLogger(klog.Logger{}, map[string]bool{name: set[name]}); err != nil {
				errs = append(errs, field.Invalid(path, name, err.Error()))
			}
		case slices.Contains(known, name):
			text := name + " has no effect in this proxy"
			if why := fixedGates[name]; why != "" {
				text += ": " + why
			}
			ineffective = append(ineffective, text)
		default:
			errs = append(errs, field.Invalid(path, name, "must be the name of a feature gate of Kubernetes v1.34 to v1.37; remove it"))
		}
	}
	return own, ineffective, errs
}

// ServerFeatureGates returns the gates of node-local-server: AllowServiceExternalIPs, DirectReturn, and those of client-go.
// Every other one is an error, since it would have no effect there.
func ServerFeatureGates(set map[string]bool) (featuregate.MutableVersionedFeatureGate, error) {
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if own := featuregate.Feature(name); own != AllowServiceExternalIPs && own != DirectReturn && !isClientGate(name) {
			return nil, fmt.Errorf("%s has no effect in node-local-server; set it for the proxies, or remove it", name)
		}
	}
	gates, _, errs := FeatureGates(set)
	return gates, errs.ToAggregate()
}

// kernelFeatures are what the rules of a gate need of the kernel, beside nft.FeatureBasic.
var kernelFeatures = map[featuregate.Feature][]nft.Feature{
	AffinityHash:    {nft.FeatureHash},
	DirectReturn:    {nft.FeatureDup, nft.FeatureHash},
	OwnTables:       {nft.FeaturePersist},
	RefusedCounters: {nft.FeatureCounters},
	ServiceCounters: {nft.FeatureCounters},
}

type quietGates interface {
	featuregate.MutableVersionedFeatureGate
	featuregate.MutableFeatureGateWithLogger
}

func newFeatureGate() quietGates {
	gates := featuregate.NewFeatureGate()
	if err := errors.Join(
		logsapi.AddFeatureGates(gates), metricsfeatures.AddFeatureGates(gates), zpagesfeatures.AddFeatureGates(gates),
		gates.Add(clientFeatures()),
		gates.Add(map[featuregate.Feature]featuregate.FeatureSpec{
			AffinityHash:            {Default: false, PreRelease: featuregate.Alpha},
			DirectReturn:            {Default: false, PreRelease: featuregate.Alpha},
			OwnTables:               {Default: false, PreRelease: featuregate.Alpha},
			RefusedCounters:         {Default: false, PreRelease: featuregate.Alpha},
			ServiceCounters:         {Default: false, PreRelease: featuregate.Alpha},
			AllowServiceExternalIPs: {Default: true, PreRelease: featuregate.GA},
			LocalhostNodePorts:      {Default: true, PreRelease: featuregate.Alpha},
		}),
	); err != nil {
		panic(err) // two packages define one gate
	}
	return gates
}

// UseInClients has all clients of this process ask gates for client-go's features instead of environment variables, as
// kube-proxy does. It must be called before the first client is made.
func UseInClients(gates featuregate.FeatureGate) {
	clientfeatures.ReplaceFeatureGates(clientGates{gates})
}

// clientGates makes client-go's Gates of component-base's.
type clientGates struct{ featuregate.FeatureGate }

// Enabled implements clientfeatures.Gates.
func (g clientGates) Enabled(name clientfeatures.Feature) bool {
	return g.FeatureGate.Enabled(featuregate.Feature(name))
}

// clientFeatures returns all features of client-go.
func clientFeatures() clientRegistry {
	features := clientRegistry{}
	_ = clientfeatures.AddFeaturesToExistingFeatureGates(features) // the error is that of Add
	return features
}

// isClientGate reports whether client-go has a gate of that name.
func isClientGate(name string) bool {
	_, known := clientFeatures()[featuregate.Feature(name)]
	return known
}

// clientRegistry takes client-go's features in the form that component-base's gates have.
type clientRegistry map[featuregate.Feature]featuregate.FeatureSpec

// Add implements clientfeatures.Registry.
func (r clientRegistry) Add(features map[clientfeatures.Feature]clientfeatures.FeatureSpec) error {
	for name, spec := range features {
		to := featuregate.FeatureSpec{Default: spec.Default, LockToDefault: spec.LockToDefault}
		setStage(&to.PreRelease, string(spec.PreRelease))
		r[featuregate.Feature(name)] = to
	}
	return nil
}

// setStage sets a stage of development, for whose type featuregate exports no name. Both libraries spell the stages alike.
func setStage[T ~string](stage *T, text string) { *stage = T(text) }
