package flows

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// situations are what a difference can say of the objects of a cluster and of a flow in it. Random clusters have no names
// of cases to select.
var situations = map[string]func([]apiservertest.Object, Flow) bool{
	"several-claims":         hasSeveralClaims,
	"own-endpoint-elsewhere": isEndpointElsewhere,
	"endpoint-twice":         hasEndpointTwice,
	"endpoint-is-frontend":   hasEndpointThatIsFrontend,
}

// situationNames are the values of the selector when.
func situationNames() []string { return slices.Sorted(maps.Keys(situations)) }

func servicesOf(objects []apiservertest.Object) (services []*corev1.Service) {
	for _, o := range objects {
		if s, ok := o.(*corev1.Service); ok {
			services = append(services, s)
		}
	}
	return services
}

// addressesOf returns the addresses of a Service, an address twice that it has as two kinds.
func addressesOf(s *corev1.Service) (addrs []netip.Addr) {
	texts := s.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{s.Spec.ClusterIP}
	}
	texts = slices.Concat(texts, s.Spec.ExternalIPs)
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		texts = append(texts, ingress.IP)
	}
	for _, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// isDialed reports whether a Service has the address and port, or the address at all if any port counts.
func isDialed(s *corev1.Service, at netip.AddrPort, anyPort bool) bool {
	has := slices.Contains(addressesOf(s), at.Addr())
	return has && anyPort || slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		isNode := at.Addr() == lab.NodeAddrs.Like(at.Addr()) || at.Addr() == lab.GatewayAddrs.Like(at.Addr())
		return has && p.Port == int32(at.Port()) || isNode && p.NodePort == int32(at.Port())
	})
}

// hasSeveralClaims reports whether the address that is dialled is the address of several Services, or of several kinds.
func hasSeveralClaims(objects []apiservertest.Object, f Flow) bool {
	var claims int
	for _, s := range servicesOf(objects) {
		for _, addr := range addressesOf(s) {
			if addr == f.To.Addr() {
				claims++
			}
		}
	}
	return claims > 1
}

// hasEndpointThatIsFrontend reports whether an endpoint of a Service that is dialled is where a Service can be dialled.
func hasEndpointThatIsFrontend(objects []apiservertest.Object, f Flow) bool {
	services := servicesOf(objects)
	return slices.ContainsFunc(services, func(s *corev1.Service) bool {
		return isDialed(s, f.To, true) && slices.ContainsFunc(EndpointsOf(slicesOf(objects, s)), func(e Endpoint) bool {
			return slices.ContainsFunc(e.Ports, func(p Port) bool {
				return slices.ContainsFunc(services, func(o *corev1.Service) bool {
					return isDialed(o, netip.AddrPortFrom(e.Addr, p.Number), false)
				})
			})
		})
	})
}

// isEndpointElsewhere reports whether an endpoint sends, and its EndpointSlice does not say that it is on this node.
func isEndpointElsewhere(objects []apiservertest.Object, f Flow) bool {
	return slices.ContainsFunc(EndpointsOf(objects), func(e Endpoint) bool {
		return e.Addr == f.From.Addr(f.To.Addr()) && e.Node != lab.NodeName
	})
}

// hasEndpointTwice reports whether a Service that is dialled has one address in several entries with unequal conditions,
// hints or nodes.
func hasEndpointTwice(objects []apiservertest.Object, f Flow) bool {
	return slices.ContainsFunc(servicesOf(objects), func(s *corev1.Service) bool {
		return isDialed(s, f.To, true) && hasUnequalEntries(slicesOf(objects, s))
	})
}

// slicesOf returns the EndpointSlices of a Service.
func slicesOf(objects []apiservertest.Object, s *corev1.Service) (of []apiservertest.Object) {
	for _, o := range objects {
		if o, ok := o.(*discoveryv1.EndpointSlice); ok && o.Namespace == s.Namespace && o.Labels[discoveryv1.LabelServiceName] == s.Name {
			of = append(of, o)
		}
	}
	return of
}

func hasUnequalEntries(endpointSlices []apiservertest.Object) bool {
	known := map[string]discoveryv1.Endpoint{}
	for _, o := range endpointSlices {
		for _, e := range o.(*discoveryv1.EndpointSlice).Endpoints {
			entry := discoveryv1.Endpoint{NodeName: e.NodeName, Hints: e.Hints, Conditions: discoveryv1.EndpointConditions{
				Ready: new(ptr.Deref(e.Conditions.Ready, true)), Serving: new(ptr.Deref(e.Conditions.Serving, true)),
				Terminating: new(ptr.Deref(e.Conditions.Terminating, false)),
			}}
			for _, addr := range e.Addresses {
				if before, is := known[addr]; is && !reflect.DeepEqual(before, entry) {
					return true
				}
				known[addr] = entry
			}
		}
	}
	return false
}
