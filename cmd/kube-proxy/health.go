package main

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/health"
	"github.com/nftproxy/nftproxy/internal/localnodeport"
	"github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/internal/node"
	"github.com/nftproxy/nftproxy/model"
)

func newHealth(c *v1alpha2.KubeProxyConfiguration) *health.Proxy {
	return health.NewProxy(health.Options{
		Timeout:   2 * c.SyncPeriod.Duration,
		OnHealthz: metrics.CountHealthz,
		OnLivez:   metrics.CountLivez,
	})
}

// newServiceHealth returns what serves healthCheckNodePorts, on the addresses that node ports have.
func newServiceHealth(p *health.Proxy, c compiler.Config, events *node.Events) *health.Services {
	return health.NewServices(health.ServicesOptions{
		Ready:       p.Ready,
		Primary:     c.NodePortAddresses.Primary,
		CIDRs:       c.NodePortAddresses.CIDRs,
		OnListening: metrics.SetServiceHealthPorts,
		OnFailure: func(namespace, service string, err error) {
			if recorder := events.Recorder(); recorder != nil {
				about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: service}
				recorder.Eventf(about, nil, corev1.EventTypeWarning, "FailedToStartServiceHealthcheck", "Listen", "%s", err)
			}
		},
	})
}

func newForwarder(c *v1alpha2.KubeProxyConfiguration) *localnodeport.Forwarder {
	return localnodeport.New(localnodeport.Options{
		Addresses:       localnodeport.Addresses(config.LoopbackNodePorts(c)),
		OnListeners:     metrics.SetLocalhostListeners,
		OnListenFailure: metrics.CountLocalhostListenFailure,
	})
}

func observeFlows(family model.Family, stats conntrack.Stats, err error) {
	metrics.ObserveConntrack(family, stats.Duration, stats.Deleted)
	if err != nil {
		metrics.CountConntrackFailure(family)
	}
}
