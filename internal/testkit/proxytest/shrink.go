package proxytest

import (
	"context"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// Bounds of shrink.
const (
	shrinkSteps = 200
	shrinkTime  = time.Minute
)

// shrink leaves out of the objects what a divergence does not need, until nothing more can go. It returns the number of
// steps that it tried.
func (p *pair) shrink(ctx context.Context, objects []apiservertest.Object, d divergence) (smallest []apiservertest.Object, steps int, err error) {
	until := time.Now().Add(shrinkTime)
	// What is wrong because of that shows when the smallest objects are tried once more.
	p.patience = flows.ShortPatience
	defer func() { p.patience = sureAfter }()
	for again := true; again; {
		again = false
		for i := 0; ; {
			smaller := smallerThan(objects)
			if i >= len(smaller) {
				break
			}
			if steps >= shrinkSteps || time.Now().After(until) {
				p.log("%s: not shrunk any further after %d steps", d.flow.Name, steps)
				return objects, steps, nil
			}
			steps++
			found, of, err := p.differing(ctx, smaller[i], flowsOf([]divergence{d}))
			if err != nil {
				return nil, steps, err
			}
			if len(found) == 0 || found[0].swapped != d.swapped {
				p.failure = nil // A proxy that fails with fewer objects shows something else.
				i++
				continue
			}
			objects, again = of, true
		}
	}
	return objects, steps, nil
}

// smallerThan returns variants of objects that each lack something, those that lack most first.
func smallerThan(objects []apiservertest.Object) (all [][]apiservertest.Object) {
	for _, o := range objects {
		if s, ok := o.(*corev1.Service); ok {
			all = append(all, slices.DeleteFunc(slices.Clone(objects), func(o apiservertest.Object) bool {
				return sameObject(o, s) || o.GetLabels()[discoveryv1.LabelServiceName] == s.Name
			}))
		}
	}
	for i := range objects {
		all = append(all, slices.Delete(slices.Clone(objects), i, i+1))
	}
	for i, o := range objects {
		for _, smaller := range partsLeftOut(o) {
			variant := slices.Clone(objects)
			variant[i] = smaller
			all = append(all, variant)
		}
	}
	return all
}

// partsLeftOut returns variants of an object that an API server would take too.
func partsLeftOut(o apiservertest.Object) (all []apiservertest.Object) {
	switch o := o.(type) {
	case *corev1.Service:
		for _, change := range serviceChanges(o) {
			smaller := o.DeepCopy()
			change(smaller)
			all = append(all, smaller)
		}
	case *discoveryv1.EndpointSlice:
		for _, change := range sliceChanges(o) {
			smaller := o.DeepCopy()
			change(smaller)
			all = append(all, smaller)
		}
	}
	return all
}

// without returns a list without one element.
func without[T any](list []T, i int) []T { return slices.Delete(slices.Clone(list), i, i+1) }

func serviceChanges(o *corev1.Service) (all []func(*corev1.Service)) {
	add := func(may bool, change func(*corev1.Service)) {
		if may {
			all = append(all, change)
		}
	}
	external := o.Spec.Type != corev1.ServiceTypeClusterIP
	add(external, func(s *corev1.Service) {
		s.Spec.Type, s.Status.LoadBalancer.Ingress, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeClusterIP, nil, nil
		s.Spec.AllocateLoadBalancerNodePorts = nil
		if len(s.Spec.ExternalIPs) == 0 {
			s.Spec.ExternalTrafficPolicy = ""
		}
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
	})
	for i := range o.Spec.ClusterIPs {
		add(len(o.Spec.ClusterIPs) > 1, func(s *corev1.Service) {
			s.Spec.ClusterIPs = without(s.Spec.ClusterIPs, i)
			s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
		})
	}
	for i := range o.Spec.Ports {
		add(len(o.Spec.Ports) > 1, func(s *corev1.Service) { s.Spec.Ports = without(s.Spec.Ports, i) })
	}
	for i := range o.Spec.ExternalIPs {
		add(true, func(s *corev1.Service) {
			if s.Spec.ExternalIPs = without(s.Spec.ExternalIPs, i); len(s.Spec.ExternalIPs) == 0 && !external {
				s.Spec.ExternalTrafficPolicy = ""
			}
		})
	}
	for i := range o.Status.LoadBalancer.Ingress {
		add(true, func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = without(s.Status.LoadBalancer.Ingress, i)
		})
	}
	for i := range o.Spec.LoadBalancerSourceRanges {
		add(true, func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = without(s.Spec.LoadBalancerSourceRanges, i)
		})
	}
	add(o.Spec.SessionAffinity != "", func(s *corev1.Service) { s.Spec.SessionAffinity = "" })
	add(o.Spec.InternalTrafficPolicy != nil, func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = nil })
	add(o.Spec.ExternalTrafficPolicy != "", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = "" })
	return all
}

func sliceChanges(o *discoveryv1.EndpointSlice) (all []func(*discoveryv1.EndpointSlice)) {
	add := func(change func(*discoveryv1.EndpointSlice)) { all = append(all, change) }
	for i := range o.Endpoints {
		add(func(s *discoveryv1.EndpointSlice) { s.Endpoints = without(s.Endpoints, i) })
	}
	for i := range o.Ports {
		add(func(s *discoveryv1.EndpointSlice) { s.Ports = without(s.Ports, i) })
	}
	for i, e := range o.Endpoints {
		if !ptr.Deref(e.Conditions.Ready, true) {
			add(func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: new(true)}
			})
		}
		if e.Hints != nil {
			add(func(s *discoveryv1.EndpointSlice) { s.Endpoints[i].Hints = nil })
		}
	}
	return all
}

// withoutAffinity returns the objects with no session affinity, and whether that makes a difference.
func withoutAffinity(objects []apiservertest.Object) (plain []apiservertest.Object, changed bool) {
	for _, o := range objects {
		if s, ok := o.(*corev1.Service); ok && s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
			s = s.DeepCopy()
			s.Spec.SessionAffinity = ""
			o, changed = s, true
		}
		plain = append(plain, o)
	}
	return plain, changed
}
