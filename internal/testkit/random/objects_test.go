package random

import (
	"slices"
	"testing"

	"github.com/nftproxy/nftproxy/internal/manifests"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// features are what random clusters must have now and then.
var features = map[string]func(o manifests.Objects) bool{
	"session affinity with its default timeout": anyService(func(s *corev1.Service) bool {
		return s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && s.Spec.SessionAffinityConfig == nil
	}),
	"session affinity with a timeout": anyService(func(s *corev1.Service) bool { return s.Spec.SessionAffinityConfig != nil }),
	"internalTrafficPolicy Local": anyService(func(s *corev1.Service) bool {
		return s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	}),
	"externalTrafficPolicy Local": anyService(func(s *corev1.Service) bool {
		return s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	}),
	"ipMode Proxy": anyService(func(s *corev1.Service) bool {
		return slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool { return *i.IPMode == corev1.LoadBalancerIPModeProxy })
	}),
	"source ranges": anyService(func(s *corev1.Service) bool { return len(s.Spec.LoadBalancerSourceRanges) > 0 }),
	"several ports": anyService(func(s *corev1.Service) bool { return len(s.Spec.Ports) > 1 }),
	"hints by zone": anyEndpoint(func(e discoveryv1.Endpoint) bool { return e.Hints != nil && e.Hints.ForZones != nil }),
	"hints by node": anyEndpoint(func(e discoveryv1.Endpoint) bool { return e.Hints != nil && e.Hints.ForNodes != nil }),
	"hints by node alone": anyEndpoint(func(e discoveryv1.Endpoint) bool {
		return e.Hints != nil && e.Hints.ForNodes != nil && e.Hints.ForZones == nil
	}),
	"an endpoint that serves and terminates": anyEndpoint(func(e discoveryv1.Endpoint) bool {
		return e.Conditions.Ready != nil && !*e.Conditions.Ready && *e.Conditions.Serving && *e.Conditions.Terminating
	}),
	"an endpoint that is ready and terminates": anyEndpoint(func(e discoveryv1.Endpoint) bool {
		return e.Conditions.Terminating != nil && *e.Conditions.Terminating && *e.Conditions.Ready
	}),
	"an endpoint without conditions": anyEndpoint(func(e discoveryv1.Endpoint) bool { return e.Conditions == discoveryv1.EndpointConditions{} }),
	"a Service with several slices of a family": func(o manifests.Objects) bool {
		return anyService(func(s *corev1.Service) bool { return slicesOf(o, s, discoveryv1.AddressTypeIPv4) > 1 })(o)
	},
	"a Service of two families with slices of one": func(o manifests.Objects) bool {
		return anyService(func(s *corev1.Service) bool {
			four, six := slicesOf(o, s, discoveryv1.AddressTypeIPv4), slicesOf(o, s, discoveryv1.AddressTypeIPv6)
			return len(s.Spec.ClusterIPs) == 2 && (four == 0) != (six == 0)
		})(o)
	},
}

func anyService(is func(*corev1.Service) bool) func(manifests.Objects) bool {
	return func(o manifests.Objects) bool { return slices.ContainsFunc(o.Services, is) }
}

func anyEndpoint(is func(discoveryv1.Endpoint) bool) func(manifests.Objects) bool {
	return func(o manifests.Objects) bool {
		return slices.ContainsFunc(o.EndpointSlices, func(s *discoveryv1.EndpointSlice) bool { return slices.ContainsFunc(s.Endpoints, is) })
	}
}

func slicesOf(o manifests.Objects, s *corev1.Service, family discoveryv1.AddressType) (n int) {
	for _, slice := range o.EndpointSlices {
		if slice.Labels[discoveryv1.LabelServiceName] == s.Name && slice.AddressType == family {
			n++
		}
	}
	return n
}

func TestObjects(t *testing.T) {
	const clusters = 300
	counts := map[string]int{}
	for seed := range uint64(clusters) {
		objects := Seeded(seed).Objects(Places)
		for name, has := range features {
			if has(objects) {
				counts[name]++
			}
		}
	}
	for name := range features {
		if counts[name] < clusters/100 {
			t.Errorf("%d of %d clusters have %s", counts[name], clusters, name)
		}
	}
}
