package metrics

import "k8s.io/component-base/metrics"

// subsystem begins the names of all metrics but nftproxy_build_info.
const subsystem = "kubeproxy"

// The metrics of this package are made here, so that all have the subsystem and the stability level.

func newCounter(name, help string) *metrics.Counter {
	return metrics.NewCounter(counterOpts(name, help))
}

func newCounterVec(name, help string, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(counterOpts(name, help), labels)
}

func counterOpts(name, help string) *metrics.CounterOpts {
	return &metrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA}
}

func newGauge(name, help string) *metrics.Gauge { return metrics.NewGauge(gaugeOpts(name, help)) }

func newGaugeVec(name, help string, labels ...string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(gaugeOpts(name, help), labels)
}

func gaugeOpts(name, help string) *metrics.GaugeOpts {
	return &metrics.GaugeOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA}
}

func newHistogram(name, help string, buckets []float64) *metrics.Histogram {
	return metrics.NewHistogram(histogramOpts(name, help, buckets))
}

func newHistogramVec(name, help string, buckets []float64, labels ...string) *metrics.HistogramVec {
	return metrics.NewHistogramVec(histogramOpts(name, help, buckets), labels)
}

func histogramOpts(name, help string, buckets []float64) *metrics.HistogramOpts {
	return &metrics.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: buckets, StabilityLevel: metrics.ALPHA}
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
