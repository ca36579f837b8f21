package hooks

import "k8s.io/component-base/metrics"

// hookMetrics count deliveries. Label values are receivers' names and constants of this
// package, never a part of a request.
type hookMetrics struct {
	requests *metrics.CounterVec   // receiver, code
	received *metrics.CounterVec   // receiver
	events   *metrics.CounterVec   // receiver, action
	refused  *metrics.CounterVec   // receiver, reason
	duration *metrics.HistogramVec // receiver
}

func newMetrics(register func(...metrics.Registerable)) *hookMetrics {
	counter := func(name, help string, labels ...string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "tidewaiter", Subsystem: "webhook", Name: name, Help: help, StabilityLevel: metrics.ALPHA,
		}, labels)
	}
	m := &hookMetrics{
		requests: counter("requests_total", "Webhook requests by receiver and HTTP status; the receiver is empty for unknown names.", "receiver", "code"),
		received: counter("received_total", "Authenticated webhook deliveries by receiver.", "receiver"),
		events:   counter("events_total", "Webhook events written to the queue by receiver and action.", "receiver", "action"),
		refused:  counter("refused_total", "Webhook events answered with success and not queued, by receiver and reason.", "receiver", "reason"),
		duration: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Namespace: "tidewaiter", Subsystem: "webhook", Name: "duration_seconds", Help: "Time to answer a webhook, by receiver.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 10}, StabilityLevel: metrics.ALPHA,
		}, []string{"receiver"}),
	}
	if register != nil {
		register(m.requests, m.received, m.events, m.refused, m.duration)
	}
	return m
}
