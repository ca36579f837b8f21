// Package meter makes the metrics of a server, all of which begin with tidewaiter_, and registers
// them.
package meter

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Registerer collects metrics; a KubeRegistry of Kubernetes is one.
type Registerer interface {
	MustRegister(all ...metrics.Registerable)
}

// Process is the registry that /metrics shows. A second server in one process, as in tests, leaves
// the first one's metrics in place.
var Process Registerer = process{}

type process struct{}

func (process) MustRegister(all ...metrics.Registerable) {
	for _, m := range all {
		_ = legacyregistry.Register(m)
	}
}

// Register registers metrics with r. They count nothing if r is nil.
func Register(r Registerer, all ...metrics.Registerable) {
	if r != nil {
		r.MustRegister(all...)
	}
}

const (
	namespace = "tidewaiter"
	stability = metrics.ALPHA
)

// Counter returns a counter. The subsystem may be empty.
func Counter(subsystem, name, help string) *metrics.Counter {
	return metrics.NewCounter(&metrics.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, StabilityLevel: stability})
}

// CounterVec returns counters with labels.
func CounterVec(subsystem, name, help string, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, StabilityLevel: stability}, labels)
}

// Gauge returns a gauge, which is 0 until it is set.
func Gauge(subsystem, name, help string) *metrics.Gauge {
	return metrics.NewGauge(&metrics.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, StabilityLevel: stability})
}

// GaugeVec returns gauges with labels, or one without labels that is absent until it is set.
func GaugeVec(subsystem, name, help string, labels ...string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, StabilityLevel: stability}, labels)
}

// HistogramVec returns histograms with labels.
func HistogramVec(subsystem, name, help string, buckets []float64, labels ...string) *metrics.HistogramVec {
	return metrics.NewHistogramVec(&metrics.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets, StabilityLevel: stability}, labels)
}
