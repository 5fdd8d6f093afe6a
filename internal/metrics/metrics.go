// Package metrics holds the metrics of the proxy. Those of kube-proxy v1.37 in its nftables mode have its names, labels,
// types, buckets and stability levels. kube-proxy syncs each IP family by itself. This proxy syncs both in one
// transaction and records each measurement for both, so that queries by family find it.
package metrics

import (
	"runtime"
	"sync"
	"sync/atomic"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/fifo" // without leaderelection, which has all of client-go
	_ "k8s.io/component-base/metrics/prometheus/restclient"
	_ "k8s.io/component-base/metrics/prometheus/version" // kubernetes_build_info
	_ "k8s.io/component-base/metrics/prometheus/workqueue"

	"github.com/nftproxy/nftproxy/internal/version"
	"github.com/nftproxy/nftproxy/model"
)

// ipFamily is the label with the IP family.
const ipFamily = "ip_family"

var register sync.Once

// all holds every metric but those of collectors.
var all []metrics.Registerable

func listed[T metrics.Registerable](metric T) T {
	all = append(all, metric)
	return metric
}

// serverMetrics are the metrics of a process that serves the node-local API and programs nothing.
var serverMetrics = []metrics.Registerable{
	skippedObjects, watchFailing, lossesHeld, buildInfo,
	nodeLocalWatchers, nodeLocalBatches, nodeLocalBytes, nodeLocalLag, nodeLocalRefused,
}

// Register adds the metrics to the registry that /metrics shows. Values recorded earlier are lost. Feature gates of
// metrics (NativeHistograms) must have been applied before. Further calls do nothing.
func Register() {
	register.Do(func() {
		legacyregistry.MustRegister(all...)
		legacyregistry.CustomMustRegister(trackerCollector, serviceCollector, conntrackCollector, unansweredCollector)
		startServerAtZero()
		for _, counter := range []*metrics.CounterVec{syncFailures, cleanupFailures, conntrackDeleted, conntrackFailures, localhostListenFailures} {
			eachFamily(func(family string) { counter.WithLabelValues(family) })
		}
		SetServiceHealthPorts(0, 0)
	})
}

// RegisterServer is Register for a process that serves the node-local API and programs nothing. The first call counts.
func RegisterServer() {
	register.Do(func() {
		legacyregistry.MustRegister(serverMetrics...)
		legacyregistry.CustomMustRegister(trackerCollector)
		startServerAtZero()
	})
}

// startServerAtZero makes counters appear as 0: an alert on the increase of a counter misses one that appears as 1.
func startServerAtZero() {
	for _, reason := range []string{"node", "permission", "keys", "streams", "busy", "stalled", "tls", "connections", "silent"} {
		nodeLocalRefused.WithLabelValues(reason)
	}
	for _, resource := range []string{"services", "endpointslices", "nodes"} {
		SetLossesHeld(resource, false)
	}
	buildInfo.WithLabelValues(version.Own(), version.KubeProxy(), runtime.Version()).Set(1)
}

// eachFamily calls do with the label of each IP family.
func eachFamily(do func(label string)) {
	for _, family := range model.Families {
		do(family.String())
	}
}

// observeBoth records a duration in seconds for both families.
func observeBoth(histogram *metrics.HistogramVec, seconds float64) {
	eachFamily(func(family string) { histogram.WithLabelValues(family).Observe(seconds) })
}

var buildInfo = listed(metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name: "nftproxy_build_info",
	Help: "1; the labels have the version of nftproxy, of the kube-proxy that it replaces, and of Go", StabilityLevel: metrics.ALPHA,
}, []string{"version", "kube_proxy_version", "go_version"}))

// subsystem begins the names of all metrics but nftproxy_build_info.
const subsystem = "kubeproxy"

func options(name, help string) *metrics.KubeOpts {
	return &metrics.KubeOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA}
}

func newCounter(name, help string) *metrics.Counter {
	return listed(metrics.NewCounter((*metrics.CounterOpts)(options(name, help))))
}

func newCounterVec(name, help string, labels ...string) *metrics.CounterVec {
	return listed(metrics.NewCounterVec((*metrics.CounterOpts)(options(name, help)), labels))
}

func newGauge(name, help string) *metrics.Gauge {
	return listed(metrics.NewGauge((*metrics.GaugeOpts)(options(name, help))))
}

func newGaugeVec(name, help string, labels ...string) *metrics.GaugeVec {
	return listed(metrics.NewGaugeVec((*metrics.GaugeOpts)(options(name, help)), labels))
}

func newHistogram(name, help string, buckets []float64) *metrics.Histogram {
	return listed(metrics.NewHistogram(&metrics.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: buckets, StabilityLevel: metrics.ALPHA}))
}

func newHistogramVec(name, help string, buckets []float64, labels ...string) *metrics.HistogramVec {
	return listed(metrics.NewHistogramVec(&metrics.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: buckets, StabilityLevel: metrics.ALPHA}, labels))
}

func newDesc(name, help string, labels ...string) *metrics.Desc {
	return metrics.NewDesc(metrics.BuildFQName("", subsystem, name), help, labels, nil, metrics.ALPHA, "")
}

// oneIf returns the value of a gauge that is 1 while a condition holds, else 0.
func oneIf(condition bool) float64 {
	if condition {
		return 1
	}
	return 0
}

// collector is a metric that asks for its values when the registry asks. It is absent before source is set.
type collector[T any] struct {
	metrics.BaseStableCollector
	descs  []*metrics.Desc
	source atomic.Pointer[T]
	// collect sends a metric for each of descs.
	collect func(source *T, ch chan<- metrics.Metric)
}

// DescribeWithStability implements metrics.StableCollector.
func (c *collector[T]) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, desc := range c.descs {
		ch <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (c *collector[T]) CollectWithStability(ch chan<- metrics.Metric) {
	if source := c.source.Load(); source != nil {
		c.collect(source, ch)
	}
}
