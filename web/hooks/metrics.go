package hooks

import (
	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/internal/meter"
)

// hookMetrics count deliveries. Label values are receivers' names and constants of this
// package, never a part of a request.
type hookMetrics struct {
	requests *metrics.CounterVec   // receiver, code
	received *metrics.CounterVec   // receiver
	events   *metrics.CounterVec   // receiver, action
	refused  *metrics.CounterVec   // receiver, reason
	duration *metrics.HistogramVec // receiver
}

func newMetrics(r meter.Registerer) *hookMetrics {
	counter := func(name, help string, labels ...string) *metrics.CounterVec {
		return meter.CounterVec("webhook", name, help, labels...)
	}
	m := &hookMetrics{
		requests: counter("requests_total", "Webhook requests by receiver and HTTP status; the receiver is empty for unknown names.", "receiver", "code"),
		received: counter("received_total", "Authenticated webhook deliveries by receiver.", "receiver"),
		events:   counter("events_total", "Webhook events written to the queue by receiver and action.", "receiver", "action"),
		refused:  counter("refused_total", "Webhook events answered with success and not queued, by receiver and reason.", "receiver", "reason"),
		duration: meter.HistogramVec("webhook", "duration_seconds", "Time to answer a webhook, by receiver.",
			[]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 10}, "receiver"),
	}
	meter.Register(r, m.requests, m.received, m.events, m.refused, m.duration)
	return m
}
