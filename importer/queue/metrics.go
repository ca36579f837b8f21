package queue

import (
	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/internal/meter"
)

// queueMetrics are figures of imports, by receiver. Receivers are those of the
// configuration, so labels are bounded.
type queueMetrics struct {
	delay  *metrics.HistogramVec // receiver
	swept  *metrics.CounterVec   // result
	parked *metrics.Gauge
	lost   *metrics.Gauge
}

func newQueueMetrics(r meter.Registerer) *queueMetrics {
	m := &queueMetrics{
		delay: meter.HistogramVec("queue", "push_to_image_seconds", "Time from the notification of a push until its Image was stored, by receiver.",
			[]float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}, "receiver"),
		swept:  meter.CounterVec("sweep", "tags_total", "Tags looked at by sweeps, by result (known, imported, failed).", "result"),
		parked: meter.Gauge("queue", "parked_registries", "Registries that do not answer or asked for a pause, and whose jobs wait."),
		lost:   meter.Gauge("sweep", "lost_registries", "Registries that have nothing in most repositories in which they had images: they may have lost their storage."),
	}
	meter.Register(r, m.parked, m.delay, m.swept, m.lost)
	return m
}
