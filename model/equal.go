package model

import (
	"maps"
	"slices"
)

// Equal reports whether a backend would see no difference between p and other. Two nil ports
// are equal. It is spelled out, without reflection, because trackers and backends call it for every
// port that an event touches.
func (p *ServicePort) Equal(other *ServicePort) bool {
	if p == other || p == nil || other == nil {
		return p == other
	}
	return p.equalWithoutKeys(other) &&
		maps.Equal(p.ServiceLabels, other.ServiceLabels) && maps.Equal(p.ServiceAnnotations, other.ServiceAnnotations)
}

// EqualFor is Equal for a backend that knows no labels and annotations but those with the keys.
func (p *ServicePort) EqualFor(other *ServicePort, keys ServiceKeys) bool {
	if p == other || p == nil || other == nil {
		return p == other
	}
	return p.equalWithoutKeys(other) &&
		sameAt(keys.Labels, p.ServiceLabels, other.ServiceLabels) && sameAt(keys.Annotations, p.ServiceAnnotations, other.ServiceAnnotations)
}

// sameAt reports whether two maps have the same values at the keys.
func sameAt(keys []string, a, b map[string]string) bool {
	for _, key := range keys {
		valueA, inA := a[key]
		valueB, inB := b[key]
		if inA != inB || valueA != valueB {
			return false
		}
	}
	return true
}

// equalWithoutKeys is Equal but for labels and annotations.
func (p *ServicePort) equalWithoutKeys(other *ServicePort) bool {
	return p.ID == other.ID &&
		p.ClusterIP == other.ClusterIP && p.Port == other.Port && p.NodePort == other.NodePort &&
		slices.Equal(p.ExternalIPs, other.ExternalIPs) &&
		slices.Equal(p.LoadBalancerIPs, other.LoadBalancerIPs) &&
		slices.Equal(p.LoadBalancerSourceRanges, other.LoadBalancerSourceRanges) &&
		p.AffinityTimeout == other.AffinityTimeout &&
		p.InternalPolicy == other.InternalPolicy && p.ExternalPolicy == other.ExternalPolicy &&
		p.HealthCheckNodePort == other.HealthCheckNodePort &&
		slices.Equal(p.Cluster, other.Cluster) &&
		slices.Equal(p.Local, other.Local) && p.LocalTerminating == other.LocalTerminating &&
		slices.Equal(p.Serving, other.Serving) && slices.Equal(p.NotServing, other.NotServing) &&
		p.AppProtocol == other.AppProtocol && p.ServiceType == other.ServiceType
}
