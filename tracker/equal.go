package tracker

import (
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

// equalServicePorts reports whether a backend would see no difference between a and b.
// It is spelled out because it runs for every port of every Service that an event touches.
func equalServicePorts(a, b *model.ServicePort) bool {
	return a.ID == b.ID &&
		a.ClusterIP == b.ClusterIP && a.Port == b.Port && a.NodePort == b.NodePort &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) &&
		slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
		slices.Equal(a.LoadBalancerSourceRanges, b.LoadBalancerSourceRanges) &&
		a.AffinityTimeout == b.AffinityTimeout &&
		a.InternalPolicy == b.InternalPolicy && a.ExternalPolicy == b.ExternalPolicy &&
		a.HealthCheckNodePort == b.HealthCheckNodePort &&
		slices.Equal(a.Cluster, b.Cluster) &&
		slices.Equal(a.Local, b.Local) && a.LocalTerminating == b.LocalTerminating &&
		slices.Equal(a.Serving, b.Serving)
}
