package metrics

import (
	"sync/atomic"

	"k8s.io/component-base/metrics"

	"github.com/nftproxy/nftproxy/tracker"
)

var (
	serviceChanges         = newDesc("sync_proxy_rules_service_changes_total", "Services that were reported as added, changed or deleted")
	serviceChangesPending  = newDesc("sync_proxy_rules_service_changes_pending", "Changes of Services that no sync has taken up yet")
	endpointChanges        = newDesc("sync_proxy_rules_endpoint_changes_total", "EndpointSlices that were reported as added, changed or deleted")
	endpointChangesPending = newDesc("sync_proxy_rules_endpoint_changes_pending", "Changes of EndpointSlices that no sync has taken up yet")
	unguardedServices      = newDesc("unguarded_load_balancer_services", "Services with loadBalancerSourceRanges and load balancer IPs of an IP family that everybody may dial nevertheless")

	skippedObjects = newCounterVec("skipped_objects_total", "Objects, or parts of them, that were skipped because they are invalid", "kind", "reason")
)

// CountSkip counts what was left out of an object (tracker.Options.OnSkip).
func CountSkip(kind, reason string) { skippedObjects.WithLabelValues(kind, reason).Inc() }

// ShowTracker has the metrics of changes show what t counts. It takes the place of a
// tracker shown before.
func ShowTracker(t *tracker.Tracker) { trackerCollector.tracker.Store(t) }

var trackerCollector = &collector{}

// collector asks a Tracker when it is asked itself.
type collector struct {
	metrics.BaseStableCollector
	tracker atomic.Pointer[tracker.Tracker]
}

// DescribeWithStability implements metrics.StableCollector.
func (c *collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, desc := range []*metrics.Desc{serviceChanges, serviceChangesPending, endpointChanges, endpointChangesPending, unguardedServices} {
		ch <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (c *collector) CollectWithStability(ch chan<- metrics.Metric) {
	t := c.tracker.Load()
	if t == nil {
		return
	}
	counts := t.Counts()
	ch <- metrics.NewLazyConstMetric(serviceChanges, metrics.CounterValue, float64(counts.Services))
	ch <- metrics.NewLazyConstMetric(serviceChangesPending, metrics.GaugeValue, float64(counts.PendingServices))
	ch <- metrics.NewLazyConstMetric(endpointChanges, metrics.CounterValue, float64(counts.EndpointSlices))
	ch <- metrics.NewLazyConstMetric(endpointChangesPending, metrics.GaugeValue, float64(counts.PendingEndpointSlices))
	ch <- metrics.NewLazyConstMetric(unguardedServices, metrics.GaugeValue, float64(counts.UnguardedServices))
}
