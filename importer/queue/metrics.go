package queue

import "k8s.io/component-base/metrics"

// queueMetrics are figures of imports, by receiver. Receivers are those of the
// configuration, so labels are bounded.
type queueMetrics struct {
	delay  *metrics.HistogramVec // receiver
	swept  *metrics.CounterVec   // result
	parked *metrics.Gauge
}

func newQueueMetrics(register func(...metrics.Registerable)) *queueMetrics {
	m := &queueMetrics{
		delay: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Namespace: "tidewaiter", Subsystem: "queue", Name: "push_to_image_seconds",
			Help:           "Time from the notification of a push until its Image was stored, by receiver.",
			Buckets:        []float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200},
			StabilityLevel: metrics.ALPHA,
		}, []string{"receiver"}),
		swept: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "tidewaiter", Subsystem: "sweep", Name: "tags_total",
			Help:           "Tags looked at by sweeps, by result (known, imported, failed).",
			StabilityLevel: metrics.ALPHA,
		}, []string{"result"}),
	}
	m.parked = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "tidewaiter", Subsystem: "queue", Name: "parked_registries",
		Help: "Registries that do not answer or asked for a pause, and whose jobs wait.", StabilityLevel: metrics.ALPHA,
	})
	if register != nil {
		register(m.parked, m.delay, m.swept)
	}
	return m
}
