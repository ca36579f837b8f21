package queue

import (
	"slices"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// queueMetrics are figures of the queue by receiver. Receivers are those of the
// configuration, so labels are bounded.
type queueMetrics struct {
	depth  *metrics.GaugeVec     // receiver, state
	oldest *metrics.GaugeVec     // receiver
	delay  *metrics.HistogramVec // receiver
	jobs   *metrics.CounterVec   // receiver, result
	swept  *metrics.CounterVec   // result
	parked *metrics.Gauge
}

func newQueueMetrics(register func(...metrics.Registerable)) *queueMetrics {
	gauge := func(name, help string, labels ...string) *metrics.GaugeVec {
		return metrics.NewGaugeVec(&metrics.GaugeOpts{Namespace: "tidewaiter", Subsystem: "queue", Name: name, Help: help, StabilityLevel: metrics.ALPHA}, labels)
	}
	m := &queueMetrics{
		depth:  gauge("jobs", "Jobs in the import queue by receiver and state (waiting, leased, dead).", "receiver", "state"),
		oldest: gauge("oldest_job_age_seconds", "Age of the oldest job that is not dead, by receiver; 0 when there is none.", "receiver"),
		delay: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Namespace: "tidewaiter", Subsystem: "queue", Name: "push_to_image_seconds",
			Help:           "Time from the notification of a push until its Image was stored, by receiver.",
			Buckets:        []float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200},
			StabilityLevel: metrics.ALPHA,
		}, []string{"receiver"}),
		jobs: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "tidewaiter", Subsystem: "queue", Name: "attempts_total",
			Help:           "Attempts at a job by receiver and result (done, gone, failed, dead, released, lost).",
			StabilityLevel: metrics.ALPHA,
		}, []string{"receiver", "result"}),
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
		register(m.parked, m.depth, m.oldest, m.delay, m.jobs, m.swept)
	}
	return m
}

func (m *queueMetrics) setDepth(sources []push.Source, depth map[push.Source]push.Depth, now time.Time) {
	m.depth.Reset() // a receiver may have left the configuration
	m.oldest.Reset()
	for source := range depth {
		if !slices.Contains(sources, source) {
			sources = append(slices.Clip(sources), source)
		}
	}
	for _, source := range sources {
		d, receiver := depth[source], source.String()
		m.depth.WithLabelValues(receiver, "waiting").Set(float64(d.Waiting))
		m.depth.WithLabelValues(receiver, "leased").Set(float64(d.Leased))
		m.depth.WithLabelValues(receiver, "dead").Set(float64(d.Dead))
		age := 0.0
		if !d.Oldest.IsZero() {
			age = now.Sub(d.Oldest).Seconds()
		}
		m.oldest.WithLabelValues(receiver).Set(age)
	}
}
