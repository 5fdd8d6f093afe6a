package metrics

import (
	"strings"
	"sync/atomic"

	"k8s.io/component-base/metrics"
)

var (
	serviceConnections   = newServiceDesc("nftables_service_connections_total", "Connections that were sent to an endpoint, by Service port; without labels, those of all Service ports beyond the first 1000")
	serviceBytes         = newServiceDesc("nftables_service_bytes_total", "Bytes of connections to Services in both directions, by Service port; without labels, those of all Service ports beyond the first 1000")
	serviceCountsTooMany = newDesc("nftables_service_counters_unread", "Sets whose counters are not read, because they have too many elements")
)

func newServiceDesc(name, help string) *metrics.Desc {
	return newDesc(name, help, "namespace", "service", "port")
}

// ServiceCounts says what was counted. proxy.ServiceCounts has it.
type ServiceCounts struct {
	// Each calls its argument with each Service port, such as "shop/web:http", that has a count of its own, and with
	// the empty one for all others.
	Each func(func(servicePort string, connections, bytes uint64))
	// TooLarge is how many sets are not read.
	TooLarge func() int
}

// ShowServiceCounts has the metrics of Services show these counts. Without, they are absent.
func ShowServiceCounts(c ServiceCounts) { serviceCollector.counts.Store(&c) }

var serviceCollector = &countCollector{}

// countCollector asks for the counts when it is asked itself.
type countCollector struct {
	metrics.BaseStableCollector
	counts atomic.Pointer[ServiceCounts]
}

// DescribeWithStability implements metrics.StableCollector.
func (c *countCollector) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, desc := range []*metrics.Desc{serviceConnections, serviceBytes, serviceCountsTooMany} {
		ch <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (c *countCollector) CollectWithStability(ch chan<- metrics.Metric) {
	counts := c.counts.Load()
	if counts == nil {
		return
	}
	counts.Each(func(servicePort string, connections, bytes uint64) {
		namespace, service, _ := strings.Cut(servicePort, "/")
		service, port, _ := strings.Cut(service, ":")
		ch <- metrics.NewLazyConstMetric(serviceConnections, metrics.CounterValue, float64(connections), namespace, service, port)
		ch <- metrics.NewLazyConstMetric(serviceBytes, metrics.CounterValue, float64(bytes), namespace, service, port)
	})
	ch <- metrics.NewLazyConstMetric(serviceCountsTooMany, metrics.GaugeValue, float64(counts.TooLarge()))
}
