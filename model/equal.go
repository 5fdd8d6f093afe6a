package model

import "slices"

// Equal reports whether a backend would see no difference between p and other. Two nil ports
// are equal. It is spelled out, without reflection, because trackers and backends call it for every
// port that an event touches.
func (p *ServicePort) Equal(other *ServicePort) bool {
	if p == other || p == nil || other == nil {
		return p == other
	}
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
		slices.Equal(p.Serving, other.Serving) && slices.Equal(p.NotServing, other.NotServing)
}
